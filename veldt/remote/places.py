# SPDX-License-Identifier: Apache-2.0
"""URLs of runs in a store, and the local directories of their files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from veldt.errors import ConfigurationError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_remote(run_dir: str | Path | None) -> bool:
    """Whether a run directory is a URL: s3://..., gs://..., file://... and the like."""
    return isinstance(run_dir, str) and _URL.match(run_dir) is not None


def checked_url(url: str) -> str:
    """The URL without its last slash; refuses passwords, because files of the run contain it."""
    rest = url.partition("://")[2]
    if "@" in rest.partition("/")[0]:
        raise ConfigurationError(
            "a --run-dir must not carry a user or a password; give them in the store's own"
            " environment variables, such as AWS_ACCESS_KEY_ID"
        )
    if not rest.strip("/"):
        raise ConfigurationError(f"{url} names no folder; use for instance s3://bucket/runs/first")
    return url.rstrip("/")


def local_copy(url: str, purpose: str = "runs") -> Path:
    """Local directory for the files of a remote run, in XDG_CACHE_HOME."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[:60]
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return Path(cache).absolute() / "veldt" / purpose / f"{name}-{digest}"
