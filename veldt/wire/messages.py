# SPDX-License-Identifier: Apache-2.0
"""What the bytes of a stream mean. The same code encodes and decodes on both ends.

A message that is not exactly what the layouts promise is refused before anything else sees it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from veldt.types import Layout
from veldt.wire import inference_pb2 as pb

_PROTOCOL = 1
_ENVELOPE_BYTES = 256  # tags, lengths and numbers around `data`, generously


class Refused(Exception):  # noqa: N818 - it reads as what happened
    """A message that must not be acted upon. `reason` is one word, for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


Message = TypeVar("Message", pb.Request, pb.Reply)

Row = tuple[int, int, dict[str, np.ndarray]]
"""Sequence, group and the arrays, which are read-only views of the message."""


@dataclass(frozen=True)
class StreamFormat:
    """The layouts of both directions, and the bytes that carry them."""

    request: Layout
    reply: Layout

    @cached_property
    def digest(self) -> bytes:
        """Equal on two ends only if they mean the same by the same bytes."""
        return hashlib.sha256(repr((_PROTOCOL, self.request, self.reply)).encode()).digest()

    @cached_property
    def _requests(self) -> _Reader:
        return _Reader(self.request)

    @cached_property
    def _replies(self) -> _Reader:
        return _Reader(self.reply)

    @cached_property
    def max_request_bytes(self) -> int:
        return self.request.nbytes + _ENVELOPE_BYTES

    @cached_property
    def max_reply_bytes(self) -> int:
        return self.reply.nbytes + _ENVELOPE_BYTES

    def encode_open(self, actor: int, incarnation: int) -> bytes:
        opening = pb.Open(actor=actor, incarnation=incarnation, format=self.digest)
        return pb.Request(open=opening).SerializeToString()

    def encode_row(self, sequence: int, group: int, data: bytes) -> bytes:
        row = pb.Row(sequence=sequence, group=group, data=data)
        return pb.Request(row=row).SerializeToString()

    def decode_request(self, message: bytes) -> pb.Open | Row:
        if len(message) > self.max_request_bytes:
            raise Refused(
                "oversized", f"{len(message):,} bytes, {self.max_request_bytes:,} allowed"
            )
        request = _parse(pb.Request, message)
        if request.WhichOneof("kind") == "open":
            self._check_digest(request.open.format)
            return request.open
        row = request.row
        return row.sequence, row.group, self._requests.read(row.data)

    def encode_opened(self) -> bytes:
        return pb.Reply(opened=pb.Opened(format=self.digest)).SerializeToString()

    def encode_answer(self, sequence: int, group: int, data: bytes) -> bytes:
        answer = pb.Answer(sequence=sequence, group=group, data=data)
        return pb.Reply(answer=answer).SerializeToString()

    def check_opened(self, message: bytes) -> None:
        reply = _parse(pb.Reply, message)
        if reply.WhichOneof("kind") != "opened":
            raise Refused("malformed", "a stream begins with Opened")
        self._check_digest(reply.opened.format)

    def decode_answer(self, message: bytes) -> Row:
        if len(message) > self.max_reply_bytes:
            raise Refused("oversized", f"{len(message):,} bytes, {self.max_reply_bytes:,} allowed")
        reply = _parse(pb.Reply, message)
        if reply.WhichOneof("kind") != "answer":
            raise Refused("malformed", "not an Answer")
        answer = reply.answer
        return answer.sequence, answer.group, self._replies.read(answer.data)

    def _check_digest(self, digest: bytes) -> None:
        if digest != self.digest:
            raise Refused(
                "wrong_format",
                "the two ends do not agree on environment, group width or version;"
                " start both with the same options and the same release",
            )


def _parse(kind: type[Message], message: bytes) -> Message:
    try:
        parsed = kind.FromString(message)
    except DecodeError as error:
        raise Refused("malformed", "the bytes are not a message") from error
    if parsed.WhichOneof("kind") is None:
        raise Refused("malformed", "the message is empty")
    return parsed


class _Reader:
    """Turns the bytes of a layout into arrays, and refuses what no honest end would send. Fields of
    one type that lie side by side are checked at once."""

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
