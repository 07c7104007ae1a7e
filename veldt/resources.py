# SPDX-License-Identifier: Apache-2.0
"""Cores, memory and descriptors of this machine: how much there is, and how processes share it.

Too little is refused with a message before the first step, because later the kernel would kill a
process or send SIGBUS.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from veldt.errors import ConfigurationError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>
_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BYTES = 32 << 20  # glibc's limit
THREADS_ASKED = os.environ.get("OMP_NUM_THREADS", "")  # `limit_library_threads` sets it later


class ShortageError(ConfigurationError):
    """The machine has too little; names the need, the amount and a remedy."""


def usable_cores() -> int:
    """Cores that this process may run on; on macOS all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_library_threads() -> None:
    """Use one thread in OpenMP and BLAS of the processes started from here, unless the user asks.

    The many processes of a run would otherwise compete for the cores."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # A learner's threads would spin while they wait for each other. Where other programs need the
    # cores, an update with two threads then takes up to a hundred times as long.
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def keep_freed_memory() -> None:
    """Reuse freed memory in this process instead of returning it to the kernel (glibc only).

    A learner allocates the same activations at every step. The kernel fills each returned page with
    zeros when it is allocated again, which can take longer than the convolution that uses it."""
    if sys.platform.startswith("linux"):
        with suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
            mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@cache
def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether these x86 cores multiply bfloat16; without it, that is slower than float32."""
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return not {"avx512_bf16", "amx_bf16"}.isdisjoint(line.split())
    return False


def available_bytes() -> int:
    """Memory available on the machine, or in the container if that has less."""
    amounts = [psutil.virtual_memory().available]
    with suppress(OSError, ValueError):  # a limit of "max" is no limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        amounts.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return min(amounts)


def require_bytes(needed: int, what: str, remedy: str) -> None:
    """Raise ShortageError for more memory than is available."""
    available = available_bytes()
    if needed > available:
        raise ShortageError(
            f"'{what}' needs {needed:,} bytes of memory but {available:,} are available; {remedy}"
        )


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files to the highest that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def require_descriptors(needed: int) -> None:
    """Raise ShortageError if this process may not open so many files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise ShortageError(
            f"the run needs about {needed:,} file descriptors but may open {limit:,}; use fewer"
            f" actors, or a higher limit: ulimit -n {needed}"
        )
