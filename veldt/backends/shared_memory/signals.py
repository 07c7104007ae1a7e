# SPDX-License-Identifier: Apache-2.0
"""Kernel objects that carry slot numbers and wake sleepers: index pipes and doorbells.

A slot is handed over by a write to a pipe, never by a flag in shared memory: the system call orders
memory between the two processes on every CPU, and a dead peer cannot leave a lock behind.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from veldt.backends.shared_memory.memory import Descriptor

_INDEX = struct.Struct("=I")


class Indices(Protocol):
    """A FIFO of slot numbers."""

    def push(self, index: int) -> None: ...
    def pop(self) -> int | None: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...


class IndexPipe:
    """Slot numbers through a pipe. Writes of four bytes are atomic, so any number of processes may
    push and pop. A pipe holds 16,384 numbers, far more than there are slots."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._reader, self._writer = Descriptor(reader), Descriptor(writer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_pipe, (self._reader, self._writer)

    def push(self, index: int) -> None:
        os.write(self._writer.fd, _INDEX.pack(index))

    def pop(self) -> int | None:
        try:
            return int(_INDEX.unpack(os.read(self._reader.fd, 4))[0])
        except BlockingIOError:
            return None

    def __len__(self) -> int:
        import fcntl
        import termios

        waiting = fcntl.ioctl(self._reader.fd, termios.FIONREAD, b"\0\0\0\0")
        return int(_INDEX.unpack(waiting)[0]) // _INDEX.size

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _rebuild_pipe(reader: Descriptor, writer: Descriptor) -> IndexPipe:
    pipe = IndexPipe.__new__(IndexPipe)
    os.set_blocking(reader.fd, False)
    pipe._reader, pipe._writer = reader, writer
    return pipe


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

    def close(self) -> None:
        pass


class Bell(Protocol):
    """Something that wants to know of news."""

    def ring(self) -> None: ...


class Doorbell:
    """Wakes one sleeping node. A ring before the sleep is not lost: the sleep then ends at once."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._reader = self._writer = Descriptor(fd)
        else:
            reader, writer = os.pipe()
            self._reader, self._writer = Descriptor(reader), Descriptor(writer)
        self._prepare()

    def _prepare(self) -> None:
        os.set_blocking(self._reader.fd, False)
        os.set_blocking(self._writer.fd, False)
        self._poll = select.poll()
        self._poll.register(self._reader.fd, select.POLLIN)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_doorbell, (self._reader, self._writer)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # already rung more often than anybody will ever wait
            os.write(self._writer.fd, b"\1\0\0\0\0\0\0\0")

    def watch(self, fd: int) -> None:
        """Let a sleep also end while `fd` is readable: another way for something to come in."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_seconds: float) -> None:
        """Sleep until rung, at most `timeout_seconds`."""
        if self._poll.poll(timeout_seconds * 1000):
            with suppress(BlockingIOError):  # a colocated thread took the same ring
                os.read(self._reader.fd, 8)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _rebuild_doorbell(reader: Descriptor, writer: Descriptor) -> Doorbell:
    bell = Doorbell.__new__(Doorbell)
    bell._reader, bell._writer = reader, writer
    bell._prepare()
    return bell
