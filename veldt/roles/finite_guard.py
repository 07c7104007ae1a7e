# SPDX-License-Identifier: Apache-2.0
"""Keeps a learner's numbers finite: evidence of the first gradient that is not, an end to many.

Who applies gradients drops such a one whole and counts it. A gradient with a finite norm leaves
weights finite, so these are only looked at now and then.
"""

from __future__ import annotations

import contextlib
from typing import NoReturn

import torch

from veldt.checkpoints.store import CheckpointError, CheckpointStore
from veldt.context import NodeContext
from veldt.losses import Objective
from veldt.networks import FlatParameters
from veldt.ports import GradientSink, ParameterSink
from veldt.types import Batch, Parameters

BLACK_BOX = "black_box"
"""The directory under RUN_DIR; one black box per node."""
MOST_DROPS_IN_A_ROW = 20
_UPDATES_BETWEEN_LOOKS = 100


class NotFiniteError(RuntimeError):
    """Too many gradients in a row were not finite; the weights are the last good ones again."""


class FiniteGuard:
    """Watches the counter that every gradient sink drops into."""

    def __init__(
        self,
        context: NodeContext,
        flat: FlatParameters,
        version: int,
        gradients: GradientSink,
        weights: ParameterSink | None,
    ) -> None:
        self._context, self._flat = context, flat
        self._gradients, self._weights = gradients, weights
        self._drops = context.telemetry.counter("dropped.not_finite")
        self._seen = self._drops.value
        self._in_a_row = 0
        self._good, self._good_version = flat.vector.clone(), version
        self._updates_until_look = _UPDATES_BETWEEN_LOOKS
        self._box: str | None = None

    def check(self, batch: Batch, version: int, loss: torch.Tensor, objective: Objective) -> None:
        """Call after every gradient, with what it came from and the version it was of."""
        if self._drops.value == self._seen:
            self._in_a_row = 0
            self._keep(version)
            return
        self._seen = self._drops.value
        self._in_a_row += 1
        self._record(batch, version, loss, objective)
        statistics = slice(self._flat.num_trained, None)
        if not _is_finite(self._flat.vector[statistics]):
            # They took the bad batch in, and would be published with the weights.
            self._flat.vector[statistics] = self._good[statistics]
            self._gradients.roll_back()
        if self._in_a_row >= MOST_DROPS_IN_A_ROW:
            self._give_up(version)

    def _keep(self, version: int) -> None:
        """Now and then, the weights are kept if they are good."""
        self._updates_until_look -= 1
        if self._updates_until_look > 0:
            return
        self._updates_until_look = _UPDATES_BETWEEN_LOOKS
        if _is_finite(self._flat.vector):
            self._good.copy_(self._flat.vector)
            self._good_version = version

    def _record(self, batch: Batch, version: int, loss: torch.Tensor, objective: Objective) -> None:
        """Leave the first bad batch behind, with all that is needed to compute its loss again."""
        if self._box is not None or self._context.run_dir is None:
            return
        self._box = "none could be written"
        directory = self._context.run_dir / BLACK_BOX / self._context.name
        parts = {
            "batch": batch.arrays,
            "weights": {"vector": self._flat.vector.detach().cpu().numpy()},
            "objective": objective.state(),
        }
        meta = {
            "node": self._context.name,
            "seed": self._context.seed,
            "version": version,
            "loss": str(float(loss)),  # JSON has no NaN
        }
        with contextlib.suppress(CheckpointError):
            self._box = str(CheckpointStore(directory, keep=1).save(version, parts, meta))

    def _give_up(self, version: int) -> NoReturn:
        """Leave good weights wherever others may look for them, and say what happened."""
        self._flat.load(self._good)
        self._gradients.roll_back()
        if self._weights is not None:
            self._weights.publish(Parameters(self._good.cpu().numpy(), version + 1))
        raise NotFiniteError(
            f"{self._in_a_row} gradients in a row were not finite; the weights are those of about"
            f" version {self._good_version} again. Lower the learning rate, or look into the"
            f" first bad batch, which was saved with its weights in {self._box}"
        )


def _is_finite(vector: torch.Tensor) -> bool:
    return bool(torch.isfinite(vector).all())
