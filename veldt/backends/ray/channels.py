# SPDX-License-Identifier: Apache-2.0
"""Carries slots, weights and streams between processes that share no memory.

A queue is stored in its consumer's process. Each producer fills its share of the slots in its own
process; a slot is free again when the consumer has released its copy, so no producer gets further
ahead than over shared memory. Ray may repeat calls: each has the effect of one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import ray

from veldt.backends.shared_memory.channels import BoardMemory, QueueMemory
from veldt.backends.shared_memory.fabric import SocketLink
from veldt.backends.shared_memory.memory import Block, IndexDeque, Waker
from veldt.topology import QueueSpec
from veldt.wire.security import Security, with_certificate

Handle = Any
"""Ray's handle of a node process; calling one of its methods never waits."""

_ADDRESS_SECONDS = 2.0


@dataclass
class _Progress:
    """Progress of one producer's records; the next one has number `next`."""

    incarnation: int
    next: int = 0
    credits: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    """By number: records whose slots have not been released."""
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wake(self) -> None:
        async with self.moved:
            self.moved.notify_all()


class Intake:
    """The consumer's side: copies records into its own slots, in each producer's order.

    All of it runs in the event loop, except `returned`, which the consumer's thread calls."""

    def __init__(self, spec: QueueSpec, verify: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._progress: dict[str, _Progress] = {}
        self._credits: dict[int, asyncio.Future[None]] = {}
        self._returned = asyncio.Event()
        self._closed = False
        self.consumers: list[Waker] = []
        self.memory = QueueMemory(
            spec,
            Block(QueueMemory.nbytes(spec), spec.name),
            free=_ReturnedSlots(self, spec.num_slots),
            full=IndexDeque(),
            verify=verify,
        )

    async def deliver(
        self, producer: str, incarnation: int, number: int, payload: np.ndarray
    ) -> None:
        """Take one record. Returns when its slot was released, which is the producer's credit."""
        progress = await self._progress_of(producer, incarnation)
        if self._closed or progress.incarnation != incarnation:
            return  # from a process that has been replaced

        def is_current() -> bool:
            return progress is self._progress[producer] and not self._closed

        # Ray may run calls out of order, and repeats one whose answer was lost.
        async with progress.moved:
            await progress.moved.wait_for(lambda: progress.next >= number or not is_current())
            if progress.next == number and is_current():
                index = await self._free_slot()
                if index is None:
                    return
                progress.credits[number] = self._store(index, payload)
                progress.next += 1
                progress.moved.notify_all()
        if number in progress.credits:
            await progress.credits[number]
            progress.credits.pop(number, None)

    async def _progress_of(self, producer: str, incarnation: int) -> _Progress:
        """Begins anew with each incarnation; waiting calls of the old one return."""
        progress = self._progress.setdefault(producer, _Progress(incarnation))
        if progress.incarnation < incarnation:
            self._progress[producer] = _Progress(incarnation)
            await progress.wake()
        return self._progress[producer]

    async def _free_slot(self) -> int | None:
        while not self._closed:
            index = self.memory.free.pop()
            if index is not None:
                return index
            self._returned.clear()
            await self._returned.wait()
        return None

    def _store(self, index: int, payload: np.ndarray) -> asyncio.Future[None]:
        self.memory.slots[index].raw[:] = payload
        self._credits[index] = credit = self._loop.create_future()
        self.memory.full.push(index)
        for waker in self.consumers:
            waker.wake()
        return credit

    async def close(self) -> None:
        """Answer every waiting call, so that none fails when the process ends."""
        self._closed = True
        self._returned.set()
        for credit in list(self._credits.values()):
            self._grant(credit)
        for progress in self._progress.values():
            await progress.wake()

    def returned(self, index: int) -> None:
        """The consumer has released a slot."""
        credit = self._credits.pop(index, None)
        self._loop.call_soon_threadsafe(self._grant, credit)

    def _grant(self, credit: asyncio.Future[None] | None) -> None:
        self._returned.set()
        if credit is not None and not credit.done():
            credit.set_result(None)


class _ReturnedSlots(IndexDeque):
    """The free slots of a consumer; notifies the intake of each release."""

    def __init__(self, intake: Intake, count: int) -> None:
        super().__init__(range(count))
        self._intake = intake

    def push(self, index: int) -> None:
        super().push(index)
        self._intake.returned(index)


class Outbox:
    """The producer's side: replaces the list of full slots, and pushing is sending."""

    def __init__(self, spec: QueueSpec, verify: bool, sender: str, incarnation: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue, self._sender, self._incarnation = spec.name, sender, incarnation
        self._target: tuple[Handle, Iterator[int]] = (None, itertools.count())
        """Consumer and record numbers. Replaced together, because the producer's thread reads them
        while the event loop changes them."""
        self._lost: list[int] = []
        self.producers: list[Waker] = []
        block = Block(QueueMemory.nbytes(spec), spec.name)
        free = IndexDeque(range(spec.num_slots))
        self.memory = QueueMemory(spec, block, free, full=self, verify=verify)

    def connect(self, consumer: Handle) -> None:
        """Send to `consumer` from now on. Records that its predecessor did not confirm are dropped:
        they may have been consumed, and no record may arrive twice."""
        if consumer == self._target[0]:
            return
        self._target = (consumer, itertools.count())
        lost, self._lost = self._lost, []
        for index in lost:
            self._free(index)

    def push(self, index: int) -> None:
        consumer, numbers = self._target
        if consumer is None:
            self._loop.call_soon_threadsafe(self._unconfirmed, index, consumer)
            return
        call = consumer.deliver.remote(
            self._queue,
            self._sender,
            self._incarnation,
            next(numbers),
            self.memory.slots[index].raw,
        )
        call.future().add_done_callback(partial(self._answered, index, consumer))

    def _answered(self, index: int, consumer: Handle, answer: Future[None]) -> None:
        if answer.exception() is None:
            self._free(index)
        else:
            self._loop.call_soon_threadsafe(self._unconfirmed, index, consumer)

    def _unconfirmed(self, index: int, consumer: Handle) -> None:
        if consumer is self._target[0]:
            self._lost.append(index)  # a free slot would be sent again at once, until the run ends
        else:
            self._free(index)

    def _free(self, index: int) -> None:
        self.memory.free.push(index)
        for waker in self.producers:
            waker.wake()

    def pop(self) -> int | None:
        return None

    def __len__(self) -> int:
        return self.memory.spec.num_slots - len(self.memory.free)

    def close(self) -> None: ...


@dataclass
class _Reader:
    """A receiver of a board's versions; `version` is the newest one sent."""

    handle: Handle
    version: int = -1
    sending: bool = False


class Broadcast:
    """Sends a board's newest version to other processes, one at a time to each.

    The vector is put into the object store once per version, and each reader gets a reference."""

    def __init__(self, memory: BoardMemory) -> None:
        self._loop = asyncio.get_running_loop()
        self._memory = memory
        self._readers: dict[str, _Reader] = {}
        self._stored: tuple[int, Any] = (-1, None)
        self._scheduled = False

    def connect(self, readers: dict[str, Handle]) -> None:
        self._readers.update({name: _Reader(handle) for name, handle in readers.items()})
        self.wake()

    def wake(self) -> None:
        """Called by the writer after each publication."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        self._scheduled = False
        version = self._memory.version()
        waiting = [r for r in self._readers.values() if not r.sending and r.version < version]
        if not waiting:
            return
        if self._stored[0] < version:
            parameters = self._memory.newest()
            self._stored = (parameters.version, ray.put(parameters.vector))
        for reader in waiting:
            reader.sending, reader.version = True, self._stored[0]
            call = reader.handle.accept.remote(self._memory.spec.name, *self._stored)
            call.future().add_done_callback(partial(self._answered, reader))

    def _answered(self, reader: _Reader, answer: Future[None]) -> None:
        if answer.exception() is None:  # otherwise it is dead, and its successor is connected
            self._loop.call_soon_threadsafe(self._sent, reader)

    def _sent(self, reader: _Reader) -> None:
        reader.sending = False
        self._send()


@dataclass
class ClusterLink(SocketLink):
    """A stream between machines: the server listens on its machine's address, with token and TLS.

    Each process at an end of the stream has a copy; clients ask the server's process for its
    address."""

    security: Security = field(default_factory=lambda: with_certificate(Security()))
    server_process: Handle = None
    """Known to the clients' processes, and replaced when the server restarts."""

    def server(self) -> Any:
        host = ray.util.get_node_ip_address()
        address = f"[{host}]:0" if ":" in host else f"{host}:0"
        server = self.listen(address)
        self.address = f"{address.removesuffix('0')}{server.port}"
        return server

    def find_address(self) -> str | None:
        if self.server_process is None:
            return None
        call = self.server_process.stream_address.remote(self.spec.name)
        try:
            address: str = call.future().result(_ADDRESS_SECONDS)
        except (TimeoutError, ray.exceptions.RayError):
            return None
        return address or None

    def close(self) -> None: ...
