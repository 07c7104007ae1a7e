# SPDX-License-Identifier: Apache-2.0
"""Names and numbers that both ends of a simulator's stream know."""

SERVICE, METHOD = "veldt.Policy", "Act"
PROTOCOL = 1
TOKEN_HEADER = "veldt-token"
TLS_NAME = "veldt"
"""The name in the certificate. Servers have changing addresses, so it is not one of them."""
GOES_ON, TERMINATED, TRUNCATED = range(3)
"""What `Step.ended` says of an environment."""
