# SPDX-License-Identifier: Apache-2.0
"""For simulators: ask a policy elsewhere what to do. Needs grpcio and protobuf, and nothing else of
what Veldt needs."""

from typing import TYPE_CHECKING

from veldt.client.spaces import described

if TYPE_CHECKING:
    from veldt.client.connection import PolicyClient, Refused

__all__ = ["PolicyClient", "Refused", "described"]


def __getattr__(name: str) -> object:
    """gRPC has threads, and the package reads spaces where there may be none: it waits until
    somebody connects."""
    if name in __all__:
        from veldt.client import connection

        return vars(connection)[name]
    raise AttributeError(f"module 'veldt.client' has no attribute '{name}'")
