# SPDX-License-Identifier: Apache-2.0
"""How often an item may be sampled on average, whatever the speeds of actors and learner."""

from __future__ import annotations

import numpy as np

from veldt.errors import ConfigurationError


class RateLimiter:
    """Keeps |samples - samples_per_insert * (inserts - min_size)| within an error buffer.

    As in Reverb and Acme the buffer is min_size * samples_per_insert * tolerance. It is never so
    narrow that both sides would wait for each other: it spans at least one largest insert and one
    largest sample. `samples_per_insert` None: only the minimum size counts."""

    def __init__(
        self,
        samples_per_insert: float | None,
        min_size_to_sample: int = 1,
        tolerance: float = 0.1,
        *,
        largest_insert: int = 1,
        largest_sample: int = 1,
    ) -> None:
        if samples_per_insert is not None and samples_per_insert <= 0:
            raise ConfigurationError(
                f"samples_per_insert is {samples_per_insert}; give a positive number, or None for"
                " no limit"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size_to_sample = max(1, min_size_to_sample)
        self.num_inserted = 0
        self.num_sampled = 0
        ratio = samples_per_insert or 0.0
        self.error_buffer = max(
            self.min_size_to_sample * ratio * tolerance, largest_insert * ratio, largest_sample
        )

    @property
    def surplus(self) -> float:
        """samples_per_insert * (inserts - min_size) - samples: how far sampling is behind."""
        ratio = self.samples_per_insert or 0.0
        return ratio * (self.num_inserted - self.min_size_to_sample) - self.num_sampled

    def can_insert(self, num: int = 1) -> bool:
        if self.samples_per_insert is None or self.num_inserted < self.min_size_to_sample:
            return True
        return self.surplus + num * self.samples_per_insert <= self.error_buffer

    def can_sample(self, num: int = 1) -> bool:
        if self.num_inserted < self.min_size_to_sample:
            return False
        return self.samples_per_insert is None or self.surplus - num >= -self.error_buffer

    def inserted(self, num: int) -> None:
        self.num_inserted += num

    def sampled(self, num: int) -> None:
        self.num_sampled += num

    def state(self) -> dict[str, np.ndarray]:
        return {"counts": np.array([self.num_inserted, self.num_sampled])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.num_inserted, self.num_sampled = (int(count) for count in state["counts"])
