# SPDX-License-Identifier: Apache-2.0
"""Work that takes its time beside a loop that must not wait: a checkpoint on its way to disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Calls `work` once, in a thread that does not keep the program alive."""

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
        """Whether it has ended, or does so within `seconds`; None waits for it."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What `work` returned, once it is done; what it raised is raised here."""
        if self._error is not None:
            raise self._error
        return self._values[0]
