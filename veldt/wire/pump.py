# SPDX-License-Identifier: Apache-2.0
"""An event loop that turns only when it is asked to, in the thread that asks.

gRPC's own threads do the network. With a Python thread for the loop beside the role's, the two would
hand the interpreter lock to each other several times per row, which costs more than the row.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Pump:
    """Owns the loop. `fileno()` can be polled: it is readable when a turn would do something."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)

    def fileno(self) -> int:
        return self._selector.fileno()

    def turn(self) -> None:
        """Take what came in and let it run: the first round wakes tasks, the second runs them."""
        for _ in range(2):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Turn until `work` is done; for beginnings and ends."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.loop.close()
