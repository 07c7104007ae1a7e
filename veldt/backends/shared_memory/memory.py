# SPDX-License-Identifier: Apache-2.0
"""Memory that several processes see, and kernel objects that carry slot numbers and wake sleepers.

Memory is a memfd on Linux: it has no name to leak, is freed with its last reference (kill -9
included), and is not bound by the size of /dev/shm. Elsewhere it is an unlinked temporary file.

A slot is handed over by a write to a pipe, never by a flag in shared memory: the system call orders
memory between the two processes on every CPU, and a dead peer cannot leave a lock behind.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import tempfile
import termios
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any, Protocol

import numpy as np

from veldt.resources import ShortageError, require_bytes

_REMEDY = "lower the number of slots, environments per actor or trajectory steps"
_INDEX = struct.Struct("=I")


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


class Block:
    """`nbytes` of zeroed memory, of this process or shared with every process it is passed to."""

    def __init__(
        self,
        nbytes: int,
        name: str = "veldt",
        between_processes: bool = False,
        descriptor: Descriptor | None = None,
    ) -> None:
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        if between_processes:
            descriptor = descriptor or _allocated(self.nbytes, name)
        self._descriptor = descriptor
        flags = mmap.MAP_SHARED if descriptor else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(descriptor.fd if descriptor else -1, self.nbytes, flags)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without a descriptor, the other process starts with memory of its own.
        return Block, (self.nbytes, "", self._descriptor is not None, self._descriptor)

    @property
    def memory(self) -> memoryview:
        return memoryview(self._map)

    def array(self, dtype: str, count: int = -1, offset: int = 0) -> np.ndarray:
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset)

    def close(self) -> None:
        """Close the descriptor; the mapping is freed with its last view."""
        if self._descriptor is not None:
            self._descriptor.close()


def _allocated(nbytes: int, name: str) -> Descriptor:
    require_bytes(nbytes, name, _REMEDY)
    if hasattr(os, "memfd_create"):
        descriptor = Descriptor(os.memfd_create(name, os.MFD_CLOEXEC))
    else:
        with tempfile.TemporaryFile(prefix=name) as file:
            descriptor = Descriptor(os.dup(file.fileno()))
    try:
        # ftruncate alone would succeed, and the first write die with SIGBUS if memory is short.
        os.ftruncate(descriptor.fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor.fd, 0, nbytes)
    except OSError as error:
        descriptor.close()
        raise ShortageError(
            f"'{name}' needs {nbytes:,} bytes of shared memory, but the system says:"
            f" {error.strerror}; {_REMEDY}"
        ) from error
    return descriptor


class Indices(Protocol):
    """A FIFO of slot numbers."""

    def push(self, index: int) -> None: ...
    def pop(self) -> int | None: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...


class IndexPipe:
    """Slot numbers in a pipe, for any number of processes: writes of four bytes are atomic.

    A pipe holds 16,384 numbers, far more than there are slots."""

    def __init__(self, ends: tuple[Descriptor, Descriptor] | None = None) -> None:
        self._reader, self._writer = ends or map(Descriptor, os.pipe())
        os.set_blocking(self._reader.fd, False)

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexPipe, ((self._reader, self._writer),)

    def push(self, index: int) -> None:
        os.write(self._writer.fd, _INDEX.pack(index))

    def pop(self) -> int | None:
        try:
            return int(_INDEX.unpack(os.read(self._reader.fd, 4))[0])
        except BlockingIOError:
            return None

    def __len__(self) -> int:
        waiting = fcntl.ioctl(self._reader.fd, termios.FIONREAD, b"\0\0\0\0")
        return int(_INDEX.unpack(waiting)[0]) // _INDEX.size

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class IndexDeque:
    """Slot numbers within one process; append and popleft are atomic among its threads."""

    def __init__(self, indices: Iterable[int] = ()) -> None:
        self._indices = deque(indices)

    def push(self, index: int) -> None:
        self._indices.append(index)

    def pop(self) -> int | None:
        try:
            return self._indices.popleft()
        except IndexError:
            return None

    def __len__(self) -> int:
        return len(self._indices)

    def close(self) -> None: ...


class Wakeable(Protocol):
    """Something to notify of news."""

    def wake(self) -> None: ...


class Waker:
    """Wakes one sleeping node. A notification before the sleep is not lost: it ends the sleep."""

    def __init__(self, ends: tuple[Descriptor, Descriptor] | None = None) -> None:
        if ends is not None:
            self._reader, self._writer = ends
        elif hasattr(os, "eventfd"):
            self._reader = self._writer = Descriptor(os.eventfd(0, os.EFD_CLOEXEC))
        else:
            self._reader, self._writer = map(Descriptor, os.pipe())
        os.set_blocking(self._reader.fd, False)
        os.set_blocking(self._writer.fd, False)
        self._poll = select.poll()
        self._poll.register(self._reader.fd, select.POLLIN)

    def __reduce__(self) -> tuple[Any, ...]:
        return Waker, ((self._reader, self._writer),)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # the counter is full: the sleeper wakes in any case
            os.write(self._writer.fd, b"\1\0\0\0\0\0\0\0")

    def watch(self, fd: int) -> None:
        """Also wake when `fd` is readable."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_seconds: float) -> None:
        """Sleep until notified, at most `timeout_seconds`."""
        if self._poll.poll(timeout_seconds * 1000):
            with suppress(BlockingIOError):  # a colocated thread took the same notification
                os.read(self._reader.fd, 8)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
