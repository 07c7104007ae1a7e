# SPDX-License-Identifier: Apache-2.0
"""How the libraries below Python use cores and memory in the many processes of a run."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>
_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BYTES = 32 << 20  # glibc takes no more


def share_cores() -> None:
    """For processes that are started from here and load those libraries then; what the user has
    set stays."""
    # They are many; one thread each, or they fight over the cores.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # A learner's further threads look for more work for 5 ms by default, on the cores that actors
    # were just told to go on with; this is 0.3 ms, more than lies between two operations.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def keep_freed_memory() -> None:
    """From now on this process uses freed memory again instead of handing it back to the kernel.

    A learner allocates the same activations at every step. glibc returns what lies free at the end
    of the heap, and the kernel fills every page with zeros when it is asked for again, which can
    take longer than a convolution that writes to it. Where there is no glibc, nothing changes."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
