# SPDX-License-Identifier: Apache-2.0
"""Numbered places in memory that are taken and given back one at a time."""

from __future__ import annotations


class Pool:
    """Numbers below `size`, handed out from the lowest on, so that memory above stays untouched."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.touched = 0
        """Numbers at or above this were never handed out."""
        self.returned: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Every number is taken."""
        return self.touched == self.size and not self.returned

    def take(self) -> int:
        if self.returned:
            return self.returned.pop()
        self.touched += 1
        return self.touched - 1
