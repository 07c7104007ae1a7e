# SPDX-License-Identifier: Apache-2.0
"""A learner that is one of a population: follows the controller's orders between two updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.population.orders import (
    ENTROPY,
    LEARNING_RATE,
    Generations,
    Orders,
)
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource
from veldt.role import Part
from veldt.roles.learner import Learner
from veldt.types import REWARD_COMPONENTS, Batch, Parameters


@dataclass(eq=False)
class Membership(Part):
    """Which member of how many a learner is, and its way to the controller and the others.

    `snapshots` are weights and optimizer states that members leave for others to go on from, by
    member; `snapshot` is where this one does. On `generations` a restarted learner finds that it
    has been replaced; it writes its own `generation`."""

    member: int
    num_members: int
    num_hyperparameters: int
    learning_rate: float
    """That its optimizer was made with."""
    orders: ParameterSource
    snapshot: ParameterSink
    snapshots: list[ParameterSource]
    generation: ParameterSink
    generations: list[ParameterSource]


@dataclass(eq=False, kw_only=True)
class PopulationLearner(Learner):
    """Takes over learning rate, entropy coefficient and reward weights as ordered. Told to replace
    its policy, it waits for the parent's snapshot (weights and optimizer state), goes on from there
    under a new version, and from then on discards rows of older versions."""

    membership: Membership

    def open(self, context: NodeContext) -> None:
        super().open(context)
        membership = self.membership
        own = Generations([membership.generations[membership.member]])
        self._generation = int(own.generations[0])
        self._own_rows = OwnRows(context, self.source, int(own.first_versions[0]))
        self.source = self._own_rows
        size = 1 + membership.num_members * (2 + membership.num_hyperparameters)
        self._order_vector, self._orders_seen = np.empty(size, np.float32), -1
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
        newer = self.membership.orders.pull(self._order_vector, newer_than=self._orders_seen)
        if newer is not None:
            self._orders_seen = newer
            self._orders = Orders.from_vector(self._order_vector, self.membership.num_members)
            self._adopt(self._orders.hyperparameters[self.membership.member])
            self._leave_snapshot(self._orders)
        orders, member = self._orders, self.membership.member
        if orders is None:
            return False
        replacement = int(orders.replacements[member])
        if replacement <= self._generation:
            return True
        return self._take_over(int(orders.parents[member]), replacement)

    def _adopt(self, hyperparameters: np.ndarray) -> None:
        ordered = float(hyperparameters[LEARNING_RATE])
        self._learning_rate_factor = ordered / self.membership.learning_rate
        self.objective.adjust_entropy(float(hyperparameters[ENTROPY]))
        self._own_rows.reward_weights = hyperparameters[ENTROPY + 1 :].astype(np.float32)

    def _leave_snapshot(self, orders: Orders) -> None:
        """Where others are to take this one's weights: leave them as they are now."""
        heirs = orders.parents == self.membership.member
        heirs[self.membership.member] = False
        replacement = int(orders.replacements[heirs].max(initial=0))
        if replacement > self._left_snapshot:
            self._left_snapshot = replacement
            self.membership.snapshot.publish(Parameters(self._snapshot(), replacement))

    def _snapshot(self) -> np.ndarray:
        """Weights, then the state of who applies gradients."""
        state = self.gradients.state()
        arrays = [self._flat.vector.detach().cpu().numpy(), *(state[name] for name in state)]
        return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])

    def _take_over(self, parent: int, replacement: int) -> bool:
        board, vector = self.membership.snapshots[parent], self._snapshot_vector
        if board.pull(vector, newer_than=replacement - 1) is None:
            return False
        size, state = self._flat.size, self.gradients.state()
        self._flat.load(self._snapshot_vector[:size])
        for name, array in state.items():
            taken = self._snapshot_vector[size : size + array.size]
            state[name] = taken.reshape(array.shape).copy()
            size += array.size
        self.gradients.load_state(state)
        self._updated(self._version + 1)
        self._generation, self._own_rows.first_version = replacement, self._version
        number = np.array([replacement], np.float32)
        self.membership.generation.publish(Parameters(number, self._version))
        return True

    def _learning_rate_scale(self) -> float:
        return super()._learning_rate_scale() * self._learning_rate_factor


class OwnRows:
    """The source of a member: rows acted by the policy that it replaced are masked like reset rows,
    and rewards are weighed as this member is told to."""

    def __init__(self, context: NodeContext, source: ExperienceSource, first_version: int) -> None:
        self._source, self.first_version = source, first_version
        self._dropped = context.telemetry.counter("dropped.replaced_policy")
        self.reward_weights = np.ones(1, np.float32)

    def take_batch(self) -> Batch | None:
        while (batch := self._source.take_batch()) is not None:
            if self._has_rows_after_masking(batch):
                self._weigh(batch)
                return batch
            self._source.release(batch)
        return None

    def release(self, batch: Batch) -> None:
        self._source.release(batch)

    def _has_rows_after_masking(self, batch: Batch) -> bool:
        old = batch["parameter_version"][:-1] < self.first_version
        if not old.any():
            return True
        ignored = batch["ignored"][:-1]
        old = np.repeat(old, ignored.shape[1] // old.shape[1], axis=1)
        self._dropped.add(int(np.count_nonzero(old & ~ignored)))
        ignored |= old
        return not ignored.all()

    def _weigh(self, batch: Batch) -> None:
        components = batch.arrays.get(REWARD_COMPONENTS)
        if components is not None:
            np.matmul(components, self.reward_weights, out=batch["reward"])
        elif self.reward_weights[0] != 1.0:
            batch["reward"][:] *= self.reward_weights[0]
