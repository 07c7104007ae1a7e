# SPDX-License-Identifier: Apache-2.0
"""What the machine has left, asked before it is taken: too little is a clear message before the
first step, not a SIGBUS, a killed process or a half-started run later."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from veldt.errors import ConfigurationError

with suppress(ImportError):  # not on every system
    import resource


class ShortageError(ConfigurationError):
    """Names what is needed, what there is, and the remedy."""


def usable_cores() -> int:
    """Cores that this process may run on; all of them where the system cannot say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def multiplies_bfloat16() -> bool:
    """Whether these cores have instructions for it; without them it is slower than float32."""
    with suppress(OSError):
        return has_bfloat16(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return False


def has_bfloat16(cpuinfo: str) -> bool:
    """By the flags that Linux lists for an x86 core."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def available_bytes() -> int:
    """Memory that may still be taken: the machine's, or the container's where it has less."""
    amounts = [psutil.virtual_memory().available]
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
