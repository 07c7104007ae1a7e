# SPDX-License-Identifier: Apache-2.0
"""Slow work in a thread, for a loop that must not wait, such as writing a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Calls `work` once in a daemon thread; the threads of concurrent.futures delay the exit."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._values: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        try:
            self._values.append(self._work())
        except Exception as error:
            self._error = error

    def done(self, seconds: float | None = 0.0) -> bool:
        """Whether it ends within `seconds`; None waits for the end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What `work` returned, once it is done; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._values[0]
