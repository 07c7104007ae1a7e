# SPDX-License-Identifier: Apache-2.0
"""Sequences whose first priority follows from the values that the acting network had: no second forward
pass and no target network are needed (SEED's R2D2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from veldt.algorithms.r2d2 import sequence_priority, sequence_targets
from veldt.replay import SequenceStore
from veldt.replay.layouts import sequence_layout
from veldt.roles.replay import VALUE_BEST, VALUE_TAKEN
from veldt.types import LAST_ACTION, LAST_REWARD, Field, Layout


def kept_outputs(trajectories: Layout) -> tuple[str, ...]:
    """What a replay of sequences keeps beside observations, actions and what followed."""
    optional = (LAST_ACTION, LAST_REWARD, VALUE_TAKEN, VALUE_BEST)
    return tuple(name for name in optional if name in trajectories)


def sequence_batch_layout(trajectories: Layout, num_steps: int, batch_size: int) -> Layout:
    """What a learner gets: sequences of `num_steps` + 1 rows and their importance weights."""
    kept = kept_outputs(trajectories)
    fields = dict(sequence_layout(trajectories, num_steps, batch_size, kept).fields)
    fields["weight"] = Field((batch_size,), "float32")
    return Layout(tuple(fields.items()))


class RankedSequences(SequenceStore):
    """A SequenceStore that knows how much its sequences surprised whoever acted."""

    def __init__(
        self, layout: Layout, capacity: int, *, gamma: float, n_step: int, eta: float, **options: Any
    ) -> None:
        super().__init__(layout, capacity, outputs=kept_outputs(layout), **options)
        self._gamma, self._n_step, self._eta = gamma, n_step, eta

    def td_errors(self, items: np.ndarray, taken: str, best: str) -> np.ndarray:
        """Priorities of `items` from the values kept with their rows.

        The bootstrap row has been seen but not acted upon yet, so the last row's error is left out.
        Where environments reset within the step, the value after a time limit was never computed:
        such a row counts as an end."""
        if not items.size:
            return np.empty(0, np.float32)
        entries = self._entries(items)[self.burn_in : -1]
        arrays = {
            name: torch.from_numpy(self.blocks.arrays[name][entries])
            for name in (taken, best, "reward", "terminated", "truncated", "ignored")
        }
        next_best = arrays[best][1:].unsqueeze(-1)
        terminated, truncated = arrays["terminated"][:-1], arrays["truncated"][:-1]
        if self.blocks.final_leaves:
            terminated = terminated | truncated
        ignored = arrays["ignored"][:-1]
        targets = sequence_targets(
            arrays["reward"][:-1],
            next_best,
            next_best,
            terminated,
            truncated,
            ignored,
            self._gamma,
            self._n_step,
        )
        errors = (targets - arrays[taken][:-1]).abs()
        return sequence_priority(errors, ~ignored, self._eta).numpy()
