# SPDX-License-Identifier: Apache-2.0
"""Memory that several processes see, and descriptors that travel to them.

memfd on Linux: it has no name to leak, is freed with its last reference (kill -9 included), and is
not bound by the size of /dev/shm. Elsewhere an unlinked temporary file does the same job.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np

from veldt.resources import ShortageError, require_bytes

_REMEDY = "lower the number of slots, environments per actor or trajectory steps"


class Descriptor:
    """A file descriptor that can be an argument of a process started by forkserver or spawn."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _adopt, (reduction.DupFd(self.fd),)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _adopt(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class SharedBlock:
    """`nbytes` of zeroed memory shared with every process it is passed to."""

    def __init__(self, nbytes: int, name: str = "veldt") -> None:
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        require_bytes(self.nbytes, name, _REMEDY)
        self._descriptor = Descriptor(_anonymous_file(name))
        try:
            # ftruncate alone would succeed, and the first write die with SIGBUS if memory is short.
            os.ftruncate(self._descriptor.fd, self.nbytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor.fd, 0, self.nbytes)
        except OSError as error:
            self._descriptor.close()
            raise ShortageError(
                f"'{name}' needs {self.nbytes:,} bytes of shared memory, but the system says:"
                f" {error.strerror}; {_REMEDY}"
            ) from error
        self._map = mmap.mmap(self._descriptor.fd, self.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._descriptor, self.nbytes)

    @property
    def memory(self) -> memoryview:
        return memoryview(self._map)

    def array(self, dtype: str, count: int = -1, offset: int = 0) -> np.ndarray:
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset)

    def close(self) -> None:
        """Give up the descriptor; the mapping goes when the last view does."""
        self._descriptor.close()


def _attach(descriptor: Descriptor, nbytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    block.nbytes = nbytes
    block._descriptor = descriptor
    block._map = mmap.mmap(descriptor.fd, nbytes)
    return block


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


class PlainBlock:
    """The same interface over memory of one process."""

    def __init__(self, nbytes: int, name: str = "veldt") -> None:
        self.nbytes = nbytes
        self._array = np.zeros(max(nbytes, 64), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainBlock, (self.nbytes,)  # another process starts with memory of its own

    @property
    def memory(self) -> memoryview:
        return self._array.data

    def array(self, dtype: str, count: int = -1, offset: int = 0) -> np.ndarray:
        return np.frombuffer(self._array.data, dtype=dtype, count=count, offset=offset)

    def close(self) -> None:
        pass


Block = SharedBlock | PlainBlock
