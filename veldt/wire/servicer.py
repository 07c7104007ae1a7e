# SPDX-License-Identifier: Apache-2.0
"""The server's side of all streams, without any transport: who is connected, whose turn it is, what
came in. gRPC and the serial backend put the same bytes in here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veldt.wire import inference_pb2 as pb
from veldt.wire.messages import Refused, StreamFormat


@dataclass(frozen=True)
class InferenceRequest:
    """One row of one group of environments, whose actions are wanted. `connection` grows whenever
    an actor connects anew: what was begun under an older one will not be continued."""

    client: int
    group: int
    incarnation: int
    connection: int
    arrays: dict[str, np.ndarray]
    session: Session
    sequence: int


class Session:
    """One stream. A group may ask again only after it was answered, which bounds what a client
    can make the server hold."""

    def __init__(
        self, servicer: StreamServicer, number: int, send: Callable[[bytes], None]
    ) -> None:
        self._servicer, self.number, self._send = servicer, number, send
        self._client = -1
        self._incarnation = 0
        self._next_sequence = 0
        self._asked = [False] * servicer.groups_per_client

    def receive(self, message: bytes) -> None:
        """Take one message; raises Refused, after which the stream must end."""
        try:
            request = self._servicer.format.decode_request(message)
            if isinstance(request, pb.Open):
                self._open(request)
            else:
                self._take(*request)
        except Refused as refusal:
            self._servicer.refuse(refusal.reason)
            raise

    def _open(self, opening: pb.Open) -> None:
        if self._client >= 0:
            raise Refused("malformed", "a stream is opened once")
        self._servicer.admit(self, opening.actor, opening.incarnation)
        self._client, self._incarnation = opening.actor, opening.incarnation
        self._send(self._servicer.format.encode_opened())

    def _take(self, sequence: int, group: int, arrays: dict[str, np.ndarray]) -> None:
        if self._client < 0:
            raise Refused("malformed", "a stream begins with Open")
        if not self._servicer.is_current(self, self._client):
            raise Refused("superseded", f"actor {self._client} has a newer stream")
        if sequence != self._next_sequence:
            raise Refused("replayed", f"row {sequence} came, {self._next_sequence} was due")
        if group >= len(self._asked) or self._asked[group]:
            raise Refused("out_of_turn", f"group {group} may not ask now")
        self._next_sequence += 1
        self._asked[group] = True
        self._servicer.put(
            InferenceRequest(
                self._client, group, self._incarnation, self.number, arrays, self, sequence
            )
        )

    def close(self) -> None:
        """Who comes back opens a new stream; until then there is nothing to be done."""

    def answer(self, request: InferenceRequest, data: bytes) -> None:
        self._asked[request.group] = False
        self._send(self._servicer.format.encode_answer(request.sequence, request.group, data))


class StreamServicer:
    """Serves the streams of all actors: rows wait here until the inference server takes them. It
    belongs to the server's thread."""

    def __init__(self, format: StreamFormat, num_clients: int, groups_per_client: int) -> None:
        self.format, self.groups_per_client = format, groups_per_client
        self._inbox: deque[InferenceRequest] = deque()
        self._current: list[Session | None] = [None] * num_clients
        self._incarnations = [0] * num_clients
        self._connections = 0
        self.refused: Counter[str] = Counter()
        """Messages refused so far, by reason."""

    def connect(self, send: Callable[[bytes], None]) -> Session:
        """A new stream; `send` must not block."""
        self._connections += 1
        return Session(self, self._connections, send)

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def admit(self, session: Session, client: int, incarnation: int) -> None:
        """Make `session` the one stream of `client`, or raise Refused."""
        if client >= len(self._current):
            raise Refused("malformed", f"there is no actor {client}")
        if incarnation < self._incarnations[client]:
            raise Refused("old_incarnation", f"actor {client} has been restarted since")
        self._incarnations[client] = incarnation
        self._current[client] = session

    def is_current(self, session: Session, client: int) -> bool:
        return self._current[client] is session

    def put(self, request: InferenceRequest) -> None:
        self._inbox.append(request)

    def take(self) -> InferenceRequest | None:
        """The next row, or None. Rows of a stream that was replaced are left out."""
        while self._inbox:
            request = self._inbox.popleft()
            if self._current[request.client] is request.session:
                return request
        return None

    def answer(self, request: InferenceRequest, data: bytes) -> None:
        """Send the answer on the stream that asked; nobody reads it if that one is gone."""
        request.session.answer(request, data)

    def close(self) -> None:
        """Nothing listens here: both ends are in this process."""
