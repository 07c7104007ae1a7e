# SPDX-License-Identifier: Apache-2.0
"""A learner of one learning player: freezes its model into the pool and begins anew as told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.league.pool import ModelPool
from veldt.league.state import Matches
from veldt.ports import ParameterSink, ParameterSource
from veldt.role import Part
from veldt.roles.learner import Learner
from veldt.roles.trajectory_sources import NewerRows
from veldt.types import Parameters


@dataclass(eq=False)
class LearningPlayer(Part):
    """Which learning player this is, and its way to the manager. What it writes on `generation` is
    the model it last froze itself as, the one it last began anew after, and the first version of
    its weights since; there a restarted learner finds how far it had come."""

    player: int
    num_learning: int
    capacity: int
    matches: ParameterSource
    generation: ParameterSink
    known_generation: ParameterSource


@dataclass(frozen=True)
class EntropySchedule:
    """Falls from `start` to `end` over `env_steps`, by the same factor in equal times: first a
    policy that hardly runs in circles, then one that is close to an equilibrium."""

    start: float
    end: float
    env_steps: int

    def __call__(self, env_steps: float) -> float:
        passed = min(1.0, env_steps / self.env_steps)
        return float(self.start * (self.end / self.start) ** passed)


@dataclass(eq=False, kw_only=True)
class LeagueLearner(Learner):
    """Follows orders between two updates. The model is on disk before the weights change: an
    exploiter that was reset first would leave its initial weights in the pool."""

    player: LearningPlayer
    entropy: EntropySchedule | None = None

    def open(self, context: NodeContext) -> None:
        super().open(context)
        player, self._pool = self.player, ModelPool(context.run_dir)
        said = np.zeros(3, np.float32)
        version = player.known_generation.pull(said, newer_than=-1)
        self._generation_version = 0 if version is None else version
        self._frozen_as, self._reset_after, first_version = (int(number) for number in said)
        self._newer_rows = NewerRows(context, self.source, first_version)
        self.source = self._newer_rows
        size = player.num_learning * player.capacity + player.capacity + 2 * player.num_learning
        self._matches_vector, self._matches_seen = np.empty(size, np.float32), -1
        self._freezes = context.telemetry.counter("league.freezes")
        self._resets = context.telemetry.counter("league.resets")

    def _begin(self) -> bool:
        player = self.player
        newer = player.matches.pull(self._matches_vector, newer_than=self._matches_seen)
        if newer is not None:
            self._matches_seen = newer
            told = Matches.from_vector(self._matches_vector, player.num_learning, player.capacity)
            self._follow(int(told.ordered[player.player]), int(told.resets[player.player]))
        if self.entropy is not None:
            self.objective.adjust_entropy(self.entropy(self._trained.value))
        return super()._begin()

    def _follow(self, model: int, reset: int) -> None:
        if model > self._frozen_as:
            self._pool.write(model, self._flat.vector.detach().cpu().numpy())
            self._frozen_as = model
            self._freezes.add()
            self._announce()
        if reset > self._reset_after:
            self._begin_anew()
            self._reset_after = reset
            self._resets.add()
            self._announce()

    def _begin_anew(self) -> None:
        """Back to the first weights, with an optimizer that has seen nothing."""
        self._flat.load(self.network.initial_vector())
        blank = {name: np.zeros_like(array) for name, array in self.gradients.state().items()}
        self.gradients.load_state(blank)
        self._updated(self._version + 1)
        # What the old weights still acted says nothing about the new ones.
        self._newer_rows.first_version = self._version

    def _announce(self) -> None:
        self._generation_version += 1
        said = (self._frozen_as, self._reset_after, self._newer_rows.first_version)
        numbers = np.array(said, np.float32)
        self.player.generation.publish(Parameters(numbers, self._generation_version))
