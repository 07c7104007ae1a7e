# SPDX-License-Identifier: Apache-2.0
"""Streams of simulators elsewhere: who is connected, which places they hold, what they wait for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from veldt.wire import policy_pb2 as pb
from veldt.wire.external_format import METHOD, SERVICE, Arrays, ExternalFormat, check_hello, parsed
from veldt.wire.protocol import Refused
from veldt.wire.security import Security
from veldt.wire.transport import RpcServer


@dataclass(frozen=True)
class ExternalRow:
    """One step of the environments of one place. `connection` is another one for each stream."""

    client: int
    """The place."""
    connection: int
    session: ExternalSession
    part: slice
    """Of the stream's environments."""
    arrays: Arrays = field(default_factory=dict)
    leaves: bool = False
    """No answer is wanted."""
    left: bool = False
    """The stream has ended: there is no step in this."""
    group: int = 0
    incarnation: int = 0


class ExternalSession:
    """One stream. It may ask again only after it was answered."""

    def __init__(
        self, servicer: ExternalServicer, number: int, send: Callable[[bytes], None]
    ) -> None:
        self._servicer, self.number, self._send = servicer, number, send
        self.width = 0
        self.places: list[int] = []
        self._steps = 0
        self._unanswered = 0
        self._has_left = self.has_ended = False

    def receive(self, message: bytes) -> None:
        """Take one message; raises Refused, after which the stream must end."""
        try:
            if len(message) > self._servicer.max_request_bytes:
                limit = self._servicer.max_request_bytes
                raise Refused("oversized", f"{len(message):,} bytes, {limit:,} allowed")
            request = parsed(message)
            if request.WhichOneof("kind") == "hello":
                self._open(request.hello)
            else:
                self._take(request.step)
        except Refused as refusal:
            self._servicer.refuse(refusal.reason)
            raise

    def _open(self, hello: pb.Hello) -> None:
        if self.width:
            raise Refused("malformed", "a stream says Hello once")
        check_hello(hello)
        self._servicer.format.check_spaces(hello)
        self.places = self._servicer.admit(hello.environments)
        self.width = hello.environments
        self._actions = np.zeros(
            (self.width, *self._servicer.format.action.shape), self._servicer.reply_dtype
        )
        self._send(self._servicer.format.welcome())

    def _take(self, step: pb.Step) -> None:
        if not self.width:
            raise Refused("malformed", "a stream begins with Hello")
        if self._unanswered or self._has_left:
            raise Refused("out_of_turn", "a Step came before the last one was answered")
        arrays = self._servicer.format.read(step, self.width, is_first=not self._steps)
        self._steps += 1
        self._has_left = step.leaves
        self._unanswered = 0 if step.leaves else len(self.places)
        for place, part in self._parts():
            rows = {name: array[part] for name, array in arrays.items()}
            row = ExternalRow(place, self.number, self, part, rows, leaves=step.leaves)
            self._servicer.put(row)

    def _parts(self) -> list[tuple[int, slice]]:
        width = self.width // max(1, len(self.places))
        return [(place, slice(i * width, (i + 1) * width)) for i, place in enumerate(self.places)]

    def answer(self, part: slice, actions: np.ndarray) -> None:
        if self.has_ended:
            return
        self._actions[part] = actions
        self._unanswered -= 1
        if not self._unanswered:
            self._send(self._servicer.format.encode_actions(self._actions))

    def close(self) -> None:
        """The stream has ended, in whatever way; its places are free once that was read."""
        self.has_ended = True
        for place, part in self._parts():
            self._servicer.put(ExternalRow(place, self.number, self, part, left=True))


class ExternalServicer:
    """All streams of a server. With `group_width` every stream holds one of `num_places` places for
    each so many of its environments; without, one place however many it has."""

    def __init__(
        self,
        format: ExternalFormat,
        num_places: int,
        group_width: int | None,
        max_environments: int,
    ) -> None:
        self.format, self._group_width = format, group_width
        self._max_environments = max_environments
        self.max_request_bytes = format.max_request_bytes(max_environments)
        self._free = list(reversed(range(num_places)))
        self._num_places = num_places
        self._inbox: deque[ExternalRow] = deque()
        self._connections = 0
        self.refused: Counter[str] = Counter()
        """Messages refused so far, by reason."""

    @property
    def reply_dtype(self) -> np.dtype:
        """Of actions as they are answered: a learner's, or the environment's."""
        if self.format.learns:
            return np.dtype(self.format.action.field_dtype)
        return self.format.action_dtype

    def connect(self, send: Callable[[bytes], None]) -> ExternalSession:
        """A new stream; `send` must not block."""
        self._connections += 1
        return ExternalSession(self, self._connections, send)

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def admit(self, environments: int) -> list[int]:
        """The places of a stream of so many environments, or Refused."""
        width = self._group_width or environments
        if environments % width:
            raise Refused(
                "malformed",
                f"{environments} environments came on one stream, expected was a multiple of"
                f" {width}; start the run with --envs-per-actor 1 to take any number",
            )
        if environments > self._max_environments:
            raise Refused(
                "malformed",
                f"{environments} environments came on one stream, at most"
                f" {self._max_environments} are taken; use several streams",
            )
        wanted = environments // width
        if wanted > len(self._free):
            raise Refused(
                "no_place",
                f"{len(self._free)} of {self._num_places} places are free, {wanted} are needed;"
                " wait until another client leaves, or start the server with more",
            )
        return [self._free.pop() for _ in range(wanted)]

    def put(self, row: ExternalRow) -> None:
        self._inbox.append(row)

    def take(self) -> ExternalRow | None:
        """The next row, or None. The place of a client that left is free from here on."""
        if not self._inbox:
            return None
        row = self._inbox.popleft()
        if row.left:
            self._free.append(row.client)
        return row

    def answer(self, row: ExternalRow, data: bytes) -> None:
        """Send the actions on the stream that asked; nobody reads them if that one is gone."""
        shape = (row.part.stop - row.part.start, *self.format.action.shape)
        actions = np.frombuffer(data, self.reply_dtype, int(np.prod(shape)))
        row.session.answer(row.part, actions.reshape(shape))


class ExternalServer(RpcServer[ExternalRow]):
    """Listens for simulators at an address."""

    def __init__(
        self,
        format: ExternalFormat,
        address: str,
        security: Security,
        num_places: int,
        group_width: int | None = None,
        max_environments: int | None = None,
    ) -> None:
        most = max_environments or num_places * (group_width or 1)
        servicer = ExternalServicer(format, num_places, group_width, most)
        super().__init__(
            servicer,
            (SERVICE, METHOD),
            servicer.max_request_bytes,
            # A new stream may come before the old one is known to be dead.
            2 * num_places + 8,
            address,
            security,
        )
