# SPDX-License-Identifier: Apache-2.0
"""What names a run that lives elsewhere, and where its files lie on this machine."""

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
    """The URL without a slash at its end. It is written into the run's files, so that it may carry
    no secret."""
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
    """Where the files of a remote run lie on this machine ; XDG_CACHE_HOME moves it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[:60]
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return Path(cache).absolute() / "veldt" / purpose / f"{name}-{digest}"
