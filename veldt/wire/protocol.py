# SPDX-License-Identifier: Apache-2.0
"""Streams without a transport: formats of messages, connected clients and the order of rows.

gRPC and the serial backend pass the same bytes in. A message that does not match the layouts
exactly is refused before anything else reads it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from veldt.types import Layout
from veldt.wire import inference_pb2 as pb
from veldt.wire import policy_pb2

SERVICE, METHOD = "veldt.wire.CentralInference", "Infer"
_PROTOCOL = 1
_ENVELOPE_BYTES = 256  # bound of the tags, lengths and numbers around `data`


class Refused(Exception):  # noqa: N818
    """A message that is rejected. `reason` is one word, for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


Message = TypeVar("Message", pb.Request, pb.Reply, policy_pb2.Request)

Row = tuple[int, int, dict[str, np.ndarray]]
"""Sequence, group and the arrays, which are read-only views of the message."""


class StreamFormat:
    """The layouts of both directions and their encoding."""

    def __init__(self, request: Layout, reply: Layout) -> None:
        self.request, self.reply = request, reply
        self._requests, self._replies = _Reader(request), _Reader(reply)
        self.max_request_bytes = request.nbytes + _ENVELOPE_BYTES
        self.max_reply_bytes = reply.nbytes + _ENVELOPE_BYTES
        # Equal on both ends only if they use the same layouts.
        self.digest = hashlib.sha256(repr((_PROTOCOL, request, reply)).encode()).digest()

    def encode_open(self, actor: int, incarnation: int) -> bytes:
        opening = pb.Open(actor=actor, incarnation=incarnation, format=self.digest)
        return pb.Request(open=opening).SerializeToString()

    def encode_row(self, sequence: int, group: int, data: bytes) -> bytes:
        row = pb.Row(sequence=sequence, group=group, data=data)
        return pb.Request(row=row).SerializeToString()

    def decode_request(self, message: bytes) -> pb.Open | Row:
        request = parse(pb.Request, message, self.max_request_bytes)
        if request.WhichOneof("kind") == "open":
            self._check_digest(request.open.format)
            return request.open
        row = request.row
        return row.sequence, row.group, self._requests.read(row.data)

    def encode_opened(self) -> bytes:
        return pb.Reply(opened=pb.Opened(format=self.digest)).SerializeToString()

    def encode_answer(self, sequence: int, group: int, data: bytes) -> bytes:
        answer = pb.Row(sequence=sequence, group=group, data=data)
        return pb.Reply(answer=answer).SerializeToString()

    def check_opened(self, message: bytes) -> None:
        reply = parse(pb.Reply, message, self.max_reply_bytes)
        if reply.WhichOneof("kind") != "opened":
            raise Refused("malformed", "a stream begins with Opened")
        self._check_digest(reply.opened.format)

    def decode_answer(self, message: bytes) -> Row:
        reply = parse(pb.Reply, message, self.max_reply_bytes)
        if reply.WhichOneof("kind") != "answer":
            raise Refused("malformed", "not an answer")
        answer = reply.answer
        return answer.sequence, answer.group, self._replies.read(answer.data)

    def _check_digest(self, digest: bytes) -> None:
        if digest != self.digest:
            raise Refused(
                "wrong_format",
                "the two ends do not agree on environment, group width or version;"
                " start both with the same options and the same release",
            )


def parse(kind: type[Message], message: bytes, most_bytes: int) -> Message:
    """One message of a stream."""
    if len(message) > most_bytes:
        raise Refused("oversized", f"{len(message):,} bytes, {most_bytes:,} allowed")
    try:
        parsed = kind.FromString(message)
    except DecodeError as error:
        raise Refused("malformed", f"the bytes are no {kind.DESCRIPTOR.full_name}") from error
    if parsed.WhichOneof("kind") is None:
        raise Refused("malformed", "the message is empty")
    return parsed


class _Reader:
    """Reads the arrays of a layout; refuses numbers that are not finite and invalid flags.

    Adjacent fields of one type are checked together."""

    def __init__(self, layout: Layout) -> None:
        self._nbytes, self._fields = layout.nbytes, []
        self._regions: list[tuple[np.dtype, int, int]] = []
        sample = layout.views(np.zeros(layout.nbytes, np.uint8))
        offset = 0
        for name, field in layout.items():
            dtype = np.dtype(field.dtype)
            self._fields.append((name, dtype, sample[name].size, offset, field.shape))
            end = offset + Layout.of(only=field).nbytes
            if self._regions and self._regions[-1][0] == dtype:
                offset = self._regions.pop()[1]
            self._regions.append((dtype, offset, end))
            offset = end

    def read(self, data: bytes) -> dict[str, np.ndarray]:
        if len(data) != self._nbytes:
            raise Refused("malformed", f"{len(data):,} bytes of data instead of {self._nbytes:,}")
        for dtype, start, end in self._regions:
            if dtype.kind == "f":
                values = np.frombuffer(data, dtype, (end - start) // dtype.itemsize, start)
                if not np.isfinite(values).all():
                    raise Refused("not_finite", "an observation or reward is not finite")
            elif dtype.kind == "b" and np.frombuffer(data, np.uint8, end - start, start).max() > 1:
                raise Refused("malformed", "a flag that is neither true nor false")
        return {
            name: np.frombuffer(data, dtype, size, offset).reshape(shape)
            for name, dtype, size, offset, shape in self._fields
        }


Received = TypeVar("Received")


class Session:
    """One stream of a servicer; `send` must not block."""

    has_begun = False
    """Whether the client has sent what entitles it to stay silent from then on."""

    def __init__(self, servicer: Servicer[Any], number: int, send: Callable[[bytes], None]) -> None:
        self._servicer, self.number, self._send = servicer, number, send

    def receive(self, message: bytes) -> None:
        """Process one message; raises Refused, after which the stream must end."""
        raise NotImplementedError

    def close(self) -> None:
        """The stream has ended."""


class Servicer(Generic[Received]):
    """All streams of a server, without a transport; used by one thread only.

    Args:
        session_type: What reads the messages of one stream.
        method: gRPC service and method.
        max_request_bytes: Size of the largest valid message.
        max_streams: Streams at a time.
    """

    def __init__(
        self,
        session_type: Callable[..., Session],
        method: tuple[str, str],
        max_request_bytes: int,
        max_streams: int,
    ) -> None:
        self._session_type, self.method = session_type, method
        self.max_request_bytes, self.max_streams = max_request_bytes, max_streams
        self.refused: Counter[str] = Counter()
        """Messages refused so far, by reason."""
        self._inbox: deque[Received] = deque()
        self._connections = 0

    def connect(self, send: Callable[[bytes], None]) -> Session:
        self._connections += 1
        return self._session_type(self, self._connections, send)

    def put(self, received: Received) -> None:
        self._inbox.append(received)

    def take(self) -> Received | None:
        """The next message that waits for the server, or None."""
        return self._inbox.popleft() if self._inbox else None

    def answer(self, received: Received, data: bytes) -> None:
        """Send the answer on the stream that asked; ignored if that one has ended."""


@dataclass(frozen=True)
class InferenceRequest:
    """One row of one group of environments that needs actions."""

    client: int
    group: int
    incarnation: int
    connection: int
    """Grows with each stream; trajectories of an older stream are not continued."""
    arrays: dict[str, np.ndarray]
    session: StreamSession
    sequence: int


class StreamSession(Session):
    """One stream of an actor.

    A group may send a row only after the last one was answered, which bounds the server's memory.
    """

    _servicer: StreamServicer

    def __init__(
        self, servicer: StreamServicer, number: int, send: Callable[[bytes], None]
    ) -> None:
        super().__init__(servicer, number, send)
        self._client = -1
        self._incarnation = 0
        self._next_sequence = 0
        self._asked = [False] * servicer.groups_per_client

    def receive(self, message: bytes) -> None:
        request = self._servicer.format.decode_request(message)
        if isinstance(request, pb.Open):
            self._open(request)
        else:
            self._take(*request)

    def _open(self, opening: pb.Open) -> None:
        if self._client >= 0:
            raise Refused("malformed", "a stream is opened once")
        self._servicer.admit(self, opening.actor, opening.incarnation)
        self._client, self._incarnation = opening.actor, opening.incarnation
        self.has_begun = True
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

    def answer(self, request: InferenceRequest, data: bytes) -> None:
        self._asked[request.group] = False
        self._send(self._servicer.format.encode_answer(request.sequence, request.group, data))


class StreamServicer(Servicer[InferenceRequest]):
    """The streams of all actors."""

    def __init__(self, format: StreamFormat, num_clients: int, groups_per_client: int) -> None:
        # An actor may open a new stream before the old one is known to be dead.
        streams = 2 * num_clients + 8
        super().__init__(StreamSession, (SERVICE, METHOD), format.max_request_bytes, streams)
        self.format, self.groups_per_client = format, groups_per_client
        self._current: list[StreamSession | None] = [None] * num_clients
        self._incarnations = [0] * num_clients

    def admit(self, session: StreamSession, client: int, incarnation: int) -> None:
        """Make `session` the one stream of `client`, or raise Refused."""
        if client >= len(self._current):
            raise Refused("malformed", f"there is no actor {client}")
        if incarnation < self._incarnations[client]:
            raise Refused("old_incarnation", f"actor {client} has been restarted since")
        self._incarnations[client] = incarnation
        self._current[client] = session

    def is_current(self, session: StreamSession, client: int) -> bool:
        return self._current[client] is session

    def take(self) -> InferenceRequest | None:
        """The next row, or None. Rows of a stream that was replaced are skipped."""
        while self._inbox:
            request = self._inbox.popleft()
            if self._current[request.client] is request.session:
                return request
        return None

    def answer(self, received: InferenceRequest, data: bytes) -> None:
        received.session.answer(received, data)

    def close(self) -> None:
        """Nothing to close: both ends are in this process."""


class LocalClient:
    """The client end of a stream whose servicer is in the same thread."""

    def __init__(self, format: StreamFormat, actor: int, servicer: StreamServicer) -> None:
        self._format, self._actor, self._servicer = format, actor, servicer
        self._answers: deque[bytes] = deque()
        self._session: Session | None = None
        self._next_sequence = 0

    def connect(self, incarnation: int) -> None:
        self._session = self._servicer.connect(self._answers.append)
        self._next_sequence = 0
        self._session.receive(self._format.encode_open(self._actor, incarnation))
        self._format.check_opened(self._answers.popleft())

    def send(self, group: int, data: bytes) -> None:
        assert self._session is not None, "connect comes first"
        self._session.receive(self._format.encode_row(self._next_sequence, group, data))
        self._next_sequence += 1

    def receive(self) -> tuple[int, dict[str, np.ndarray]] | None:
        if not self._answers:
            return None
        _, group, arrays = self._format.decode_answer(self._answers.popleft())
        return group, arrays
