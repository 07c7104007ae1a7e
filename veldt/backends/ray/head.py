# SPDX-License-Identifier: Apache-2.0
"""Whether the head of the Ray cluster is still there.

Ray itself aborts this process, without a word, once its head has been gone for a minute; by then
the run should have ended in order.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from veldt.backends.background import Background
from veldt.backends.base import NodeFailure

_LOOK_SECONDS = 2.0
_CONNECT_SECONDS = 2.0
_MOST_REFUSALS = 4


class Head:
    """Looks on a thread: a machine that is gone does not even refuse."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._look: Background[bool] | None = None
        self._next, self._refusals = 0.0, 0
        self.is_lost = False

    def check(self, checkpoint: Path | None) -> None:
        """Raise NodeFailure once the head has not answered several times in a row. It names the
        newest checkpoint, as no other will follow."""
        if self._look is None:
            if time.monotonic() >= self._next:
                self._look = Background(self._answers)
            return
        if not self._look.done():
            return
        self._refusals = 0 if self._look.result() else self._refusals + 1
        self._look, self._next = None, time.monotonic() + _LOOK_SECONDS
        if self._refusals >= _MOST_REFUSALS:
            self.is_lost = True
            raise NodeFailure(
                "ray",
                f"the head of the cluster at {self._address} does not answer any more; the newest"
                f" checkpoint is {checkpoint or 'none, as there was no time for one'}",
            )

    def _answers(self) -> bool:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError:
            return False
        return True
