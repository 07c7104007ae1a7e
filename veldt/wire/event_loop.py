# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop that runs only when it is asked to, in the thread that asks.

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


class PolledEventLoop:
    """Runs asyncio tasks in short calls; `fileno()` is readable when there is something to run."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.asyncio_loop = asyncio.SelectorEventLoop(self._selector)
        self._readable = select.poll()
        self._readable.register(self._selector.fileno(), select.POLLIN)
        self._next_look = 0.0

    def fileno(self) -> int:
        return self._selector.fileno()

    def run_once(self) -> None:
        """Take what came in and let it run: the first round wakes tasks, the second runs them."""
        self.asyncio_loop.call_soon(self._stop_after_next_round)
        self.asyncio_loop.run_forever()

    def _stop_after_next_round(self) -> None:
        self.asyncio_loop.call_soon(self.asyncio_loop.stop)

    def run_if_ready(self) -> None:
        """Run if something came in, or if a timer may have run out since the last look."""
        now = time.monotonic()
        if self._readable.poll(0) or now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.run_once()

    def run_until_complete(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run until `work` is done; for beginnings and ends."""
        return self.asyncio_loop.run_until_complete(work)

    def close(self) -> None:
        self.asyncio_loop.close()
