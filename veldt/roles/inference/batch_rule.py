# SPDX-License-Identifier: Apache-2.0
"""When enough questions have come together for one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")


@dataclass(frozen=True)
class BatchRule:
    """When a forward pass begins: at `enough` requests, or `patience_seconds` after the first.

    enough = 1 takes what is there (GA3C); enough = half of all groups alternates two halves of the
    population (SEED); something between with a short patience is Sample Factory's."""

    enough: int = 1
    most: int = 64
    patience_seconds: float = 0.0


class OpenRequests(Generic[Request]):
    """Requests that wait for company, in the order they came."""

    def __init__(self, rule: BatchRule, clock: Callable[[], float]) -> None:
        self.rule, self._clock = rule, clock
        self._open: list[Request] = []
        self._opened_at = 0.0

    @property
    def patience_seconds(self) -> float:
        """How long a node may sleep although it has something to do soon."""
        return self.rule.patience_seconds if self._open else float("inf")

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.rule.most

    def add(self, request: Request) -> None:
        if not self._open:
            self._opened_at = self._clock()
        self._open.append(request)

    def discard(self, unwanted: Callable[[Request], bool]) -> None:
        self._open = [request for request in self._open if not unwanted(request)]

    def take_if_due(self) -> list[Request]:
        """All of them when it is time for a forward pass, else none."""
        if not self._open or not self._is_time():
            return []
        taken, self._open = self._open, []
        return taken

    def _is_time(self) -> bool:
        if len(self._open) >= self.rule.enough:
            return True
        return self._clock() - self._opened_at >= self.rule.patience_seconds
