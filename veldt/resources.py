# SPDX-License-Identifier: Apache-2.0
"""What the machine has left, asked before it is taken: too little is a clear message before the
first step, not a SIGBUS, a killed process or a half-started run later."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from veldt.errors import ConfigurationError

with suppress(ImportError):  # not on every system
    import resource


class ShortageError(ConfigurationError):
    """Names what is needed, what there is, and the remedy."""


def available_bytes() -> int:
    """Memory that may still be taken: the machine's, or the container's where it has less."""
    amounts = [sys.maxsize]
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        amounts.append(int(fields["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # a limit of "max" is none
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        amounts.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return min(amounts)


def require_bytes(needed: int, what: str, remedy: str) -> None:
    """Refuse what does not fit: the kernel would not, but kill some process later."""
    available = available_bytes()
    if needed > available:
        raise ShortageError(
            f"'{what}' needs {needed:,} bytes of memory but {available:,} are available; {remedy}"
        )


def raise_descriptor_limit() -> None:
    """Use all the file descriptors that the system would give this process."""
    if "resource" in globals():
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def require_descriptors(needed: int) -> None:
    if "resource" not in globals():
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise ShortageError(
            f"the run needs about {needed:,} file descriptors but may open {limit:,}; use fewer"
            f" actors, or a higher limit: ulimit -n {needed}"
        )
