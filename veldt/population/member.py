# SPDX-License-Identifier: Apache-2.0
"""The actors and the learner of one member of a population."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.population.orders import ENTROPY, LEARNING_RATE, Generations, Orders
from veldt.ports import ExperienceSink, ParameterSink, ParameterSource
from veldt.role import Part
from veldt.roles.actor import Actor, EnvironmentGroup
from veldt.roles.learner import Learner
from veldt.roles.trajectory_sources import NewerRows
from veldt.types import Parameters


@dataclass(eq=False)
class Scoring(Part):
    """The member that an actor plays for, and the channel to the controller."""

    member: int
    scores: ExperienceSink
    generation: ParameterSource


@dataclass(eq=False, kw_only=True)
class PopulationActor(Actor):
    """Sends its policy's returns and steps to the controller once per trajectory."""

    scoring: Scoring

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._known = Generations([self.scoring.generation])
        width = self.environments.width
        self._begun_in = [np.zeros(width, np.int64) for _ in self._groups]
        """Per group and environment: the generation in which its episode began."""
        self._over = [np.ones(width, bool) for _ in self._groups]
        self._episodes: list[tuple[int, float]] = []
        """(generation, return) of finished episodes that were not sent yet."""
        self._steps = 0

    def _ask(self, group: EnvironmentGroup) -> None:
        # A lost life is no new game, so an episode begins only where one was over.
        begins = self._over[group.index] & group.environment.first
        self._begun_in[group.index][begins] = self._known.generations[0]
        self._over[group.index][begins] = False
        super()._ask(group)

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        super()._count(group, step)
        self._steps += int(np.count_nonzero(~step.ignored))
        if step.episode_returns.size:
            begun_in = self._begun_in[group.index][step.over].tolist()
            returns = step.episode_returns.tolist()
            self._episodes += zip(begun_in, returns, strict=True)
        self._over[group.index] |= step.over

    def _finish(self, group: EnvironmentGroup) -> None:
        super()._finish(group)
        # An episode that begins before this is received counts as one of the policy before.
        self._known.refresh()
        slot = self.scoring.scores.reserve()
        if slot is None:
            return  # the controller is behind; this is sent with the next trajectory
        sent = self._episodes[: slot["generation"].size]
        slot["policy"][0], slot["env_steps"][0] = self.scoring.member, self._steps
        slot["count"][0] = len(sent)
        slot["generation"][: len(sent)] = [generation for generation, _ in sent]
        slot["episode_return"][: len(sent)] = [total for _, total in sent]
        self.scoring.scores.commit(slot)
        del self._episodes[: len(sent)]
        self._steps = 0


@dataclass(eq=False)
class PopulationMember(Part):
    """Which member a learner is, and its channels to the controller and the other members.

    `snapshots` are weights and optimizer states by member, from which others continue; `snapshot`
    is this member's own. `generation` is the board of its last replacement, which a restarted
    learner reads from `known_generation`.
    """

    member: int
    learning_rate: float
    """The one its optimizer was made with."""
    orders: ParameterSource
    snapshot: ParameterSink
    snapshots: list[ParameterSource]
    generation: ParameterSink
    known_generation: ParameterSource


@dataclass(eq=False, kw_only=True)
class PopulationLearner(Learner):
    """Follows the controller's orders between two updates.

    It adopts the learning rate and entropy coefficient that are ordered. When its policy is to be
    replaced, it waits for the parent's snapshot (weights and optimizer state), continues from there
    under a new version, and discards rows of older versions from then on.
    """

    membership: PopulationMember

    def open(self, context: NodeContext) -> None:
        super().open(context)
        membership = self.membership
        own = Generations([membership.known_generation])
        self._generation = int(own.generations[0])
        self._newer_rows = NewerRows(context, self.source, int(own.first_versions[0]))
        self.source = self._newer_rows
        self._num_members = len(membership.snapshots)
        self._order_vector = np.empty(Orders.vector_size(self._num_members), np.float32)
        self._orders_version = -1
        self._orders: Orders | None = None
        self._snapshot_vector = self._snapshot()
        own_board = membership.snapshots[membership.member]
        left_before = own_board.pull(self._snapshot_vector, newer_than=-1)
        self._left_snapshot = 0 if left_before is None else left_before
        self._learning_rate_factor = 1.0

    def _begin(self) -> bool:
        return self._follow_orders() and super()._begin()

    def _follow_orders(self) -> bool:
        """False while a parent's snapshot is not there yet."""
        member = self.membership.member
        newer = self.membership.orders.pull(self._order_vector, newer_than=self._orders_version)
        if newer is not None:
            self._orders_version = newer
            self._orders = Orders.from_vector(self._order_vector, self._num_members)
            self._adopt(self._orders.hyperparameters[member])
            self._leave_snapshot(self._orders)
        if self._orders is None:
            return False
        replacement = int(self._orders.replacements[member])
        if replacement <= self._generation:
            return True
        return self._take_over(int(self._orders.parents[member]), replacement)

    def _adopt(self, hyperparameters: np.ndarray) -> None:
        ordered = float(hyperparameters[LEARNING_RATE])
        self._learning_rate_factor = ordered / self.membership.learning_rate
        self.objective.adjust_entropy(float(hyperparameters[ENTROPY]))

    def _leave_snapshot(self, orders: Orders) -> None:
        """Publish the present weights if another member is to continue from them."""
        heirs = orders.parents == self.membership.member
        heirs[self.membership.member] = False
        replacement = int(orders.replacements[heirs].max(initial=0))
        if replacement > self._left_snapshot:
            self._left_snapshot = replacement
            self.membership.snapshot.publish(Parameters(self._snapshot(), replacement))

    def _snapshot(self) -> np.ndarray:
        """Weights, then the optimizer's state."""
        state = self.gradients.state()
        arrays = [self._flat.vector.detach().cpu().numpy(), *(state[name] for name in state)]
        return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])

    def _take_over(self, parent: int, replacement: int) -> bool:
        board, vector = self.membership.snapshots[parent], self._snapshot_vector
        if board.pull(vector, newer_than=replacement - 1) is None:
            return False
        size, state = self._flat.size, self.gradients.state()
        self._flat.load(vector[:size])
        for name, array in state.items():
            state[name] = vector[size : size + array.size].reshape(array.shape).copy()
            size += array.size
        self.gradients.load_state(state)
        self._updated(self._version + 1)
        self._generation, self._newer_rows.first_version = replacement, self._version
        number = np.array([replacement], np.float32)
        self.membership.generation.publish(Parameters(number, self._version))
        return True

    def _learning_rate_scale(self) -> float:
        return super()._learning_rate_scale() * self._learning_rate_factor
