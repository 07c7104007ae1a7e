# SPDX-License-Identifier: Apache-2.0
"""Keeps a learner's numbers finite: evidence of the first gradient that is not, an end to many.

Who applies gradients drops such a one whole and counts it. A gradient with a finite norm leaves
weights finite, so these are only looked at now and then.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from veldt.checkpoint import CheckpointError, CheckpointStore
from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.types import Batch

BLACK_BOX = "black_box"
"""The directory under RUN_DIR; one black box per node."""
MOST_DROPS_IN_A_ROW = 20
_UPDATES_BETWEEN_LOOKS = 100


class NotFiniteError(RuntimeError):
    """Too many gradients in a row were not finite; the weights are the last good ones again."""


class FiniteGuard:
    """Watches the counter that every gradient sink drops into."""

    def __init__(self, context: NodeContext, flat: FlatParameters, version: int) -> None:
        self._context, self._flat = context, flat
        self._drops = context.telemetry.counter("dropped.not_finite")
        self._seen = self._drops.value
        self._in_a_row = 0
        self._good, self._good_version = flat.vector.clone(), version
        self._updates_until_look = _UPDATES_BETWEEN_LOOKS
        self._box: str | None = None

    def dropped(self) -> bool:
        """Call after every gradient: whether it was dropped."""
        drops = self._drops.value
        if drops != self._seen:
            self._seen = drops
            self._in_a_row += 1
            return True
        self._in_a_row = 0
        return False

    def keep(self, version: int) -> None:
        """Call after every update: now and then the weights are kept, if they are good."""
        self._updates_until_look -= 1
        if self._updates_until_look > 0 or self._in_a_row:
            return
        self._updates_until_look = _UPDATES_BETWEEN_LOOKS
        if is_finite(self._flat.vector):
            self._good.copy_(self._flat.vector)
            self._good_version = version

    def record(
        self, batch: Batch, version: int, loss: torch.Tensor, objective: dict[str, np.ndarray]
    ) -> None:
        """Leave the first bad batch behind, with all that is needed to compute its loss again."""
        if self._box is not None or self._context.run_dir is None:
            return
        self._box = "none could be written"
        directory = self._context.run_dir / BLACK_BOX / self._context.name
        parts = {
            "batch": batch.arrays,
            "weights": {"vector": self._flat.vector.detach().cpu().numpy()},
            "objective": objective,
        }
        meta = {
            "node": self._context.name,
            "seed": self._context.seed,
            "version": version,
            "loss": str(float(loss)),  # JSON has no NaN
        }
        with contextlib.suppress(CheckpointError):
            self._box = str(CheckpointStore(directory, keep=1).save(version, parts, meta))

    def roll_back_if_hopeless(self) -> bool:
        """After too many drops in a row: put the last good weights back."""
        if is_finite(self._flat.vector[self._flat.num_trained :]):
            if self._in_a_row < MOST_DROPS_IN_A_ROW:
                return False
            self._flat.load(self._good)
            return True
        # Running statistics took the bad batch in; they would be published with the weights.
        self._flat.vector[self._flat.num_trained :] = self._good[self._flat.num_trained :]
        return self._in_a_row >= MOST_DROPS_IN_A_ROW and self.roll_back_if_hopeless()

    def failure(self) -> NotFiniteError:
        return NotFiniteError(
            f"{self._in_a_row} gradients in a row were not finite; the weights are those of version"
            f" {self._good_version} again. Look into the first bad batch with"
            f" veldt.black_box.replay (black box: {self._box}), or lower the learning rate"
        )


def is_finite(vector: torch.Tensor) -> bool:
    return bool(torch.isfinite(vector).all())
