# SPDX-License-Identifier: Apache-2.0
"""An event loop that turns only when it is asked to, in the thread that asks.

gRPC's own threads do the network. With a Python thread for the loop beside the role's, the two
would hand the interpreter lock to each other several times per row, which costs more than the row.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
_LOOK_SECONDS = 0.01


class Pump:
    """Owns the loop. `fileno()` can be polled: it is readable when a turn would do something."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._readable = select.poll()
        self._readable.register(self._selector.fileno(), select.POLLIN)
        self._next_look = 0.0

    def fileno(self) -> int:
        return self._selector.fileno()

    def turn(self) -> None:
        """Take what came in and let it run: the first round wakes tasks, the second runs them."""
        self.loop.call_soon(self._stop_after_next_round)
        self.loop.run_forever()

    def _stop_after_next_round(self) -> None:
        self.loop.call_soon(self.loop.stop)

    def turn_if_due(self) -> None:
        """Turn if something came in, or if a timer may have run out since the last look."""
        now = time.monotonic()
        if self._readable.poll(0) or now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.turn()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Turn until `work` is done; for beginnings and ends."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.loop.close()
