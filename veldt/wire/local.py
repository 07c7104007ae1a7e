# SPDX-License-Identifier: Apache-2.0
"""A stream within one thread: the same bytes, the same checks, no socket (serial backend)."""

from __future__ import annotations

from collections import deque

import numpy as np

from veldt.wire.messages import StreamFormat
from veldt.wire.servicer import Session, StreamServicer


class LocalClient:
    """The client's end of a stream whose servicer is in the same thread."""

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
