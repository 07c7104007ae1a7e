# SPDX-License-Identifier: Apache-2.0
"""The learner of one learning player: freezes its model into the pool and resets it on order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.league.pool import ModelPool
from veldt.league.state import MatchesSource
from veldt.ports import ParameterSink, ParameterSource
from veldt.role import Part
from veldt.roles.learner import Learner
from veldt.roles.trajectory_sources import NewerRows
from veldt.types import Parameters


@dataclass(eq=False)
class LearningPlayer(Part):
    """Which learning player this is, and its channels to the manager. On the board `generation` it
    writes the model it last froze itself as, the one it was last reset after, and the first version
    of its weights since; a restarted learner continues from there."""

    player: int
    matches: MatchesSource
    generation: ParameterSink
    known_generation: ParameterSource


@dataclass(frozen=True)
class EntropySchedule:
    """Decreases exponentially from `start` to `end` over `env_steps`: much entropy keeps self-play
    from cycling, and little lets the policy come close to an equilibrium."""

    start: float
    end: float
    env_steps: int

    def __call__(self, env_steps: float) -> float:
        passed = min(1.0, env_steps / self.env_steps)
        return float(self.start * (self.end / self.start) ** passed)


@dataclass(eq=False, kw_only=True)
class LeagueLearner(Learner):
    """Follows the manager's orders between two updates. The model is on disk before the weights
    change: an exploiter that was reset first would leave its initial weights in the pool."""

    player: LearningPlayer
    entropy: EntropySchedule | None = None

    def open(self, context: NodeContext) -> None:
        super().open(context)
        player, self._pool = self.player, ModelPool(context.run_dir)
        player.matches.open()
        generation = np.zeros(3, np.float32)
        version = player.known_generation.pull(generation, newer_than=-1)
        self._generation_version = 0 if version is None else version
        self._frozen_as, self._reset_after, first_version = (int(number) for number in generation)
        self._newer_rows = NewerRows(context, self.source, first_version)
        self.source = self._newer_rows
        self._freezes = context.telemetry.counter("league.freezes")
        self._resets = context.telemetry.counter("league.resets")

    def _begin(self) -> bool:
        newer, player = self.player.matches.newer(), self.player.player
        if newer is not None:
            self._follow(int(newer.ordered[player]), int(newer.resets[player]))
        if self.entropy is not None:
            self.objective.adjust_entropy(self.entropy(self._trained.value))
        return super()._begin()

    def _follow(self, model: int, reset: int) -> None:
        if model > self._frozen_as:
            self._pool.write(model, self._flat.vector.detach().cpu().numpy())
            self._frozen_as = model
            self._freezes.add()
            self._publish_generation()
        if reset > self._reset_after:
            self._reset()
            self._reset_after = reset
            self._resets.add()
            self._publish_generation()

    def _reset(self) -> None:
        """Restore the initial weights and clear the optimizer's state."""
        self._flat.load(self.network.initial_vector())
        blank = {name: np.zeros_like(array) for name, array in self.gradients.state().items()}
        self.gradients.load_state(blank)
        self._updated(self._version + 1)
        # Rows that the old weights acted are not learned from.
        self._newer_rows.first_version = self._version

    def _publish_generation(self) -> None:
        self._generation_version += 1
        numbers = np.array(
            (self._frozen_as, self._reset_after, self._newer_rows.first_version), np.float32
        )
        self.player.generation.publish(Parameters(numbers, self._generation_version))
