# SPDX-License-Identifier: Apache-2.0
"""Streams without a transport: formats of messages, connected clients and the order of rows.

gRPC and the serial backend pass the same bytes in. A message that does not match the layouts
exactly is refused before anything else reads it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from veldt.ports import ReceivedRow
from veldt.types import Layout

SERVICE, METHOD = "veldt.wire.CentralInference", "Infer"
_PROTOCOL = 2
_OPENING = struct.Struct("<QQ32s")  # actor, incarnation, digest of the format
_GROUP = struct.Struct("<Q")  # eight bytes, so that the arrays after it are aligned


class Refused(Exception):  # noqa: N818
    """A message that is rejected. `reason` is one word, for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class StreamFormat:
    """The messages between an actor and central inference.

    The first message of a stream is an opening, whose answer is the format's digest. Every other
    message is a row: the number of the group, then the bytes of the layout. A group sends its next
    row after the last one was answered, so a group's number identifies the row in flight."""

    def __init__(self, request: Layout, reply: Layout) -> None:
        self.request, self.reply = request, reply
        self._requests, self._replies = _Reader(request), _Reader(reply)
        self.max_request_bytes = _OPENING.size + request.nbytes
        self.max_reply_bytes = _OPENING.size + reply.nbytes
        # Equal on both ends only if they use the same layouts.
        self.digest = hashlib.sha256(repr((_PROTOCOL, request, reply)).encode()).digest()

    def encode_open(self, actor: int, incarnation: int) -> bytes:
        return _OPENING.pack(actor, incarnation, self.digest)

    def decode_open(self, message: bytes) -> tuple[int, int]:
        """Actor and incarnation."""
        if len(message) != _OPENING.size:
            raise Refused("malformed", "a stream begins with an opening")
        actor, incarnation, digest = _OPENING.unpack(message)
        self.check_digest(digest)
        return actor, incarnation

    def check_digest(self, digest: bytes) -> None:
        """Refuse another end that uses other layouts."""
        if digest != self.digest:
            raise Refused(
                "wrong_format",
                "the two ends do not agree on environment, group width or version;"
                " start both with the same options and the same release",
            )

    @staticmethod
    def encode_row(group: int, data: bytes) -> bytes:
        """A request or a reply."""
        return _GROUP.pack(group) + data

    def decode_request(self, message: bytes) -> tuple[int, dict[str, np.ndarray]]:
        """Group and arrays, which are read-only views of the message."""
        return self._requests.read(message)

    def decode_reply(self, message: bytes) -> tuple[int, dict[str, np.ndarray]]:
        return self._replies.read(message)


class _Reader:
    """Reads a row of a layout; refuses numbers that are not finite and invalid flags."""

    def __init__(self, layout: Layout) -> None:
        self._nbytes, self._fields = _GROUP.size + layout.nbytes, []
        offset = _GROUP.size
        for name, field in layout.items():
            dtype = np.dtype(field.dtype)
            self._fields.append((name, dtype, field.nbytes // dtype.itemsize, offset, field.shape))
            offset += Layout.of(only=field).nbytes

    def read(self, message: bytes) -> tuple[int, dict[str, np.ndarray]]:
        if len(message) != self._nbytes:
            raise Refused("malformed", f"{len(message):,} bytes of a row, not {self._nbytes:,}")
        arrays = {}
        for name, dtype, size, offset, shape in self._fields:
            values = np.frombuffer(message, dtype, size, offset)
            if dtype.kind == "f" and not np.isfinite(values).all():
                raise Refused("not_finite", "an observation or reward is not finite")
            if dtype.kind == "b" and values.view(np.uint8).max() > 1:
                raise Refused("malformed", "a flag that is neither true nor false")
            arrays[name] = values.reshape(shape)
        return _GROUP.unpack_from(message)[0], arrays


class Session:
    """One stream of a servicer; `send` must not block."""

    has_begun = False
    """Whether the client has sent what entitles it to stay silent from then on."""

    def __init__(self, servicer: Servicer, number: int, send: Callable[[bytes], None]) -> None:
        self._servicer, self.number, self._send = servicer, number, send

    def receive(self, message: bytes) -> None:
        """Process one message; raises Refused, after which the stream must end."""
        raise NotImplementedError

    def close(self) -> None:
        """The stream has ended."""


class Servicer:
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
        self._inbox: deque[ReceivedRow] = deque()
        self._connections = 0

    def connect(self, send: Callable[[bytes], None]) -> Session:
        self._connections += 1
        return self._session_type(self, self._connections, send)

    def put(self, row: ReceivedRow) -> None:
        self._inbox.append(row)

    def take(self) -> ReceivedRow | None:
        """The next row that waits for the server, or None."""
        return self._inbox.popleft() if self._inbox else None

    def close(self) -> None:
        """Nothing to close without a transport."""


class StreamSession(Session):
    """One stream of an actor.

    A group may send a row only after the last one was answered, which bounds the server's memory.
    """

    _servicer: StreamServicer

    def __init__(
        self, servicer: StreamServicer, number: int, send: Callable[[bytes], None]
    ) -> None:
        super().__init__(servicer, number, send)
        self._client, self._incarnation = -1, 0
        self._asked = [False] * servicer.groups_per_client

    def receive(self, message: bytes) -> None:
        format = self._servicer.format
        if self._client >= 0:
            self._take(*format.decode_request(message))
            return
        client, incarnation = format.decode_open(message)
        self._servicer.admit(self, client, incarnation)
        self._client, self._incarnation, self.has_begun = client, incarnation, True
        self._send(format.digest)

    def _take(self, group: int, arrays: dict[str, np.ndarray]) -> None:
        if not self._servicer.is_current(self.number, self._client):
            raise Refused("superseded", f"actor {self._client} has a newer stream")
        if group >= len(self._asked) or self._asked[group]:
            raise Refused("out_of_turn", f"group {group} may not ask now")
        self._asked[group] = True

        def answer(data: bytes) -> None:
            self._asked[group] = False
            self._send(StreamFormat.encode_row(group, data))

        self._servicer.put(
            ReceivedRow(self._client, group, self._incarnation, self.number, arrays, answer)
        )


class StreamServicer(Servicer):
    """The streams of all actors."""

    def __init__(self, format: StreamFormat, num_clients: int, groups_per_client: int) -> None:
        # An actor may open a new stream before the old one is known to be dead.
        streams = 2 * num_clients + 8
        super().__init__(StreamSession, (SERVICE, METHOD), format.max_request_bytes, streams)
        self.format, self.groups_per_client = format, groups_per_client
        self._current, self._incarnations = [0] * num_clients, [0] * num_clients
        """By client: the number of its stream, and how often it was restarted."""

    def admit(self, session: StreamSession, client: int, incarnation: int) -> None:
        """Make `session` the one stream of `client`, or raise Refused."""
        if client >= len(self._current):
            raise Refused("malformed", f"there is no actor {client}")
        if incarnation < self._incarnations[client]:
            raise Refused("old_incarnation", f"actor {client} has been restarted since")
        self._incarnations[client], self._current[client] = incarnation, session.number

    def is_current(self, connection: int, client: int) -> bool:
        return self._current[client] == connection

    def take(self) -> ReceivedRow | None:
        """The next row, or None. Rows of a stream that was replaced are skipped."""
        while (row := super().take()) is not None:
            if self.is_current(row.connection, row.client):
                return row
        return None


class LocalClient:
    """The client end of a stream whose servicer is in the same thread."""

    def __init__(self, format: StreamFormat, actor: int, servicer: StreamServicer) -> None:
        self._format, self._actor, self._servicer = format, actor, servicer
        self._answers: deque[bytes] = deque()
        self._session: Session | None = None

    def connect(self, incarnation: int) -> None:
        self._session = self._servicer.connect(self._answers.append)
        self._session.receive(self._format.encode_open(self._actor, incarnation))
        self._answers.clear()  # what it has just been sent is the digest

    def send(self, group: int, data: bytes) -> None:
        assert self._session is not None, "connect comes first"
        self._session.receive(self._format.encode_row(group, data))

    def receive(self) -> tuple[int, dict[str, np.ndarray]] | None:
        return self._format.decode_reply(self._answers.popleft()) if self._answers else None
