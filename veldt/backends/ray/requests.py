# SPDX-License-Identifier: Apache-2.0
"""Questions about rows of slots between processes that share no memory.

A question is one call with what the policy reads of a row, and its result is what the policy wrote:
an answer can only reach the process that asked, never its successor.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

import numpy as np

from veldt.backends.ray.messages import Handle
from veldt.backends.shared_memory.requests import RequestMemory, Rows
from veldt.backends.shared_memory.signals import Doorbell, IndexDeque
from veldt.topology import RequestsSpec
from veldt.types import (
    ACTION_MASK,
    LAST_ACTION,
    LAST_REWARD,
    Layout,
    Slot,
    is_answer_of_environment,
)

_CLIENT = struct.Struct("=I")
_READ_BY_POLICY = ("observation", ACTION_MASK, LAST_ACTION, LAST_REWARD, "first", "provenance")


class RowFormat:
    """The bytes of a question and of its answer; both ends know the layout they come from.

    The recurrent state from before a trajectory comes back with the answer about row 0."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._per_row = {name for name, field in layout.items() if field.join_axis == 1}
        self._question = [name for name in layout if name.split(".")[0] in _READ_BY_POLICY]
        written = [
            name
            for name in layout
            if name not in self._question and not is_answer_of_environment(name)
        ]
        self._answer = [name for name in written if name in self._per_row]
        self._with_state = [*self._answer, *(name for name in written if name not in self._per_row)]

    def question(self, slot: Slot, row: int) -> bytes:
        return self._packed(slot, row, self._question)

    def take_question(self, slot: Slot, row: int, data: bytes) -> None:
        self._unpack(slot, row, self._question, data)

    def answer(self, slot: Slot, row: int, client: int) -> bytes:
        return _CLIENT.pack(client) + self._packed(slot, row, self._answered(row))

    def take_answer(self, slot: Slot, row: int, data: bytes) -> int:
        """Write what the policy wrote into the row it was asked about; returns the client."""
        self._unpack(slot, row, self._answered(row), data, _CLIENT.size)
        return int(_CLIENT.unpack_from(data)[0])

    def _answered(self, row: int) -> list[str]:
        return self._answer if row else self._with_state

    def _packed(self, slot: Slot, row: int, names: Iterable[str]) -> bytes:
        return b"".join(self._part(slot, row, name).tobytes() for name in names)

    def _unpack(
        self, slot: Slot, row: int, names: Iterable[str], data: bytes, start: int = 0
    ) -> None:
        for name in names:
            part = self._part(slot, row, name)
            part[:] = np.frombuffer(data, part.dtype, part.size, start).reshape(part.shape)
            start += part.nbytes

    def _part(self, slot: Slot, row: int, name: str) -> np.ndarray:
        return slot[name][row] if name in self._per_row else slot[name]

    def slot_of_one_row(self, index: int) -> Slot:
        """A slot for one question at a time: whatever row is named, it is the same memory."""
        arrays = {}
        for name in (*self._question, *self._with_state):
            field = self._layout[name]
            if name in self._per_row:
                row = np.zeros(field.shape[1:], field.dtype)
                strides = (0, *row.strides)
                arrays[name] = np.lib.stride_tricks.as_strided(row, field.shape, strides)
            else:
                arrays[name] = np.zeros(field.shape, field.dtype)
        return Slot(index, arrays, np.empty(0, np.uint8))


class Asking:
    """The clients' side: takes the place of the list of waiting questions; pushing is a call."""

    def __init__(self, spec: RequestsSpec, queue: Rows) -> None:
        self._loop = asyncio.get_running_loop()
        self._name, self._queue = spec.name, queue
        self._format = RowFormat(spec.queue.layout)
        self._server: Handle = None
        self._lost: list[int] = []
        self.clients: dict[int, Doorbell] = {}
        answered = [IndexDeque() for _ in range(spec.num_clients)]
        self.memory = RequestMemory(queue, pending=self, answered=answered)

    def connect(self, server: Handle) -> None:
        """Ask `server` from now on, first of all what its predecessor did not answer."""
        self._server = server
        lost, self._lost = self._lost, []
        for key in lost:
            self.push(key)

    def push(self, index: int) -> None:
        slot, row = divmod(index, self._queue.num_rows)
        question = self._format.question(self._queue.slots[slot], row)
        server = self._server
        if server is None:
            self._loop.call_soon_threadsafe(self._unanswered, index, server)
            return
        call = server.ask.remote(self._name, row, question)
        call.future().add_done_callback(partial(self._returned, index, server))

    def _returned(self, key: int, server: Handle, result: Future[bytes]) -> None:
        """Called in a thread of Ray's; the row is complete before its client hears of it."""
        if result.exception() is not None:
            self._loop.call_soon_threadsafe(self._unanswered, key, server)
        elif data := result.result():  # nothing: the server is being stopped
            slot, row = divmod(key, self._queue.num_rows)
            client = self._format.take_answer(self._queue.slots[slot], row, data)
            self.memory.answered[client].push(key)
            self.clients[client].ring()

    def _unanswered(self, key: int, server: Handle) -> None:
        if server is self._server:
            self._lost.append(key)  # kept back, or this would spin until the run ends
        else:
            self.push(key)

    def pop(self) -> int | None:
        return None

    def __len__(self) -> int:
        return 0

    def close(self) -> None: ...


class Answering:
    """The servers' side: puts each question into a slot of its own and returns what is written
    there. All of it runs in the event loop, except `answered`, which a server's thread calls."""

    def __init__(self, spec: RequestsSpec) -> None:
        self._loop = asyncio.get_running_loop()
        self._format = RowFormat(spec.queue.layout)
        self.slots: list[Slot] = []
        self.num_rows = spec.queue.layout["first"].shape[0]
        self._free: list[int] = []
        self._open: dict[int, asyncio.Future[int | None]] = {}
        self._closed = False
        self.servers: list[Doorbell] = []
        answered = [_AnswersTo(client, self) for client in range(spec.num_clients)]
        self.memory = RequestMemory(self, pending=IndexDeque(), answered=answered)

    async def ask(self, row: int, question: bytes) -> bytes:
        """The answer; nothing if there will be none because the run ends."""
        if self._closed:
            return b""
        slot = self._free_slot()
        self._format.take_question(slot, row, question)
        self._open[slot.index] = answer = self._loop.create_future()
        self.memory.pending.push(slot.index * self.num_rows + row)
        for doorbell in self.servers:
            doorbell.ring()
        client = await answer
        if client is None:
            return b""
        data = self._format.answer(slot, row, client)
        self._free.append(slot.index)
        return data

    def _free_slot(self) -> Slot:
        if self._free:
            return self.slots[self._free.pop()]
        self.slots.append(self._format.slot_of_one_row(len(self.slots)))
        return self.slots[-1]

    def answered(self, key: int, client: int) -> None:
        self._loop.call_soon_threadsafe(self._resolve, key // self.num_rows, client)

    def _resolve(self, index: int, client: int | None) -> None:
        answer = self._open.pop(index, None)
        if answer is not None and not answer.done():
            answer.set_result(client)

    def close(self) -> None:
        """End every call that waits, so that none is cut off when the process ends."""
        self._closed = True
        for index in list(self._open):
            self._resolve(index, None)


class _AnswersTo(IndexDeque):
    """What a server takes for the list of a client's answered rows."""

    def __init__(self, client: int, side: Answering) -> None:
        super().__init__()
        self._client, self._side = client, side

    def push(self, index: int) -> None:
        self._side.answered(index, self._client)
