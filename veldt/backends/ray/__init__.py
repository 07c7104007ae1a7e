# SPDX-License-Identifier: Apache-2.0
"""One Ray actor per group of nodes, on one machine or many.

Anyone who reaches a Ray port can run code in the cluster, so a cluster that a run starts listens on
loopback only and requires a token. Ray reads these settings when it is imported.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from veldt.errors import ConfigurationError, install

_SETTINGS = {
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it would end this process at SIGTERM
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers share this Python environment
    "RAY_USAGE_STATS_ENABLED": "0",
}
_LOCAL_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for listening on loopback only
}


def named_address() -> str | None:
    """The cluster that the user names; None: start one."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def _set_environment() -> None:
    """Ray reads these variables when it is imported, and its processes inherit them."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if named_address() is None:
        os.environ.update(_LOCAL_SETTINGS)
        if not _has_token():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    return (Path.home() / ".ray" / "auth_token").exists()


if "ray" not in sys.modules:
    _set_environment()
HAS_LOCAL_SETTINGS = all(os.environ.get(name) == each for name, each in _LOCAL_SETTINGS.items())
"""Whether Ray was imported with the settings of a local cluster."""

try:
    import ray  # noqa: F401
except ImportError as error:
    raise ConfigurationError(
        f"the ray backend needs Ray, which is not installed: {install('ray')}"
    ) from error
