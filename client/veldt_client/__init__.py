# SPDX-License-Identifier: Apache-2.0
"""Client of a Veldt policy server, for simulators. Needs grpcio, protobuf and NumPy."""

from veldt_client.policy_client import PolicyClient, Refused
from veldt_client.spaces import described

__all__ = ["PolicyClient", "Refused", "described"]
