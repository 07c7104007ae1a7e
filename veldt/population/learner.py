# SPDX-License-Identifier: Apache-2.0
"""A learner that is one of a population: follows the controller's orders between two updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from veldt.context import NodeContext
from veldt.objectives import Adjustable
from veldt.population.orders import (
    ENTROPY,
    LEARNING_RATE,
    Orders,
    Standings,
)
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource
from veldt.roles.learner import Learner
from veldt.types import REWARD_COMPONENTS, Batch, Parameters


@dataclass(frozen=True)
class MemberConfig:
    """Which member of how many, and the learning rate that its optimizer was made with."""

    member: int
    num_members: int
    num_hyperparameters: int
    learning_rate: float


class PopulationLearner(Learner):
    """Takes over learning rate, entropy coefficient and reward weights as ordered. Told to replace
    its policy, it waits for the parent's estate (weights and optimizer state), goes on from there
    under a new version, and from then on discards rows of older versions.

    `estates` are what the members leave behind, by member; `estate` is where this one does.
    On `standings` a restarted learner finds that it has been replaced; it writes its `standing`."""

    def __init__(
        self,
        context: NodeContext,
        *,
        config: MemberConfig,
        orders: ParameterSource,
        estate: ParameterSink,
        estates: list[ParameterSource],
        standing: ParameterSink,
        standings: list[ParameterSource],
        **arguments: Any,
    ) -> None:
        super().__init__(context, **arguments)
        self._config, self._order_board, self._estates = config, orders, estates
        self._own_estate = estate
        own = Standings([standings[config.member]])
        self._standing, self._generation = standing, int(own.generations[0])
        self._own_rows = OwnRows(context, self._source, int(own.first_versions[0]))
        self._source = self._own_rows
        size = 1 + config.num_members * (2 + config.num_hyperparameters)
        self._order_vector, self._orders_seen = np.empty(size, np.float32), -1
        self._orders: Orders | None = None
        self._estate_vector = self._estate()
        left_before = estates[config.member].pull(self._estate_vector, newer_than=-1)
        self._left_estate = 0 if left_before is None else left_before
        self._learning_rate_factor = 1.0

    def _begin(self) -> bool:
        return self._follow_orders() and super()._begin()

    def _follow_orders(self) -> bool:
        """False while a parent's estate is not there yet."""
        newer = self._order_board.pull(self._order_vector, newer_than=self._orders_seen)
        if newer is not None:
            self._orders_seen = newer
            self._orders = Orders.from_vector(self._order_vector, self._config.num_members)
            self._adopt(self._orders.hyperparameters[self._config.member])
            self._leave_estate(self._orders)
        orders, member = self._orders, self._config.member
        if orders is None:
            return False
        ticket = int(orders.tickets[member])
        if ticket <= self._generation:
            return True
        return self._take_over(int(orders.parents[member]), ticket)

    def _adopt(self, hyperparameters: np.ndarray) -> None:
        config = self._config
        self._learning_rate_factor = float(hyperparameters[LEARNING_RATE]) / config.learning_rate
        assert isinstance(self._objective, Adjustable)
        self._objective.adjust(entropy_coefficient=float(hyperparameters[ENTROPY]))
        self._own_rows.reward_weights = hyperparameters[ENTROPY + 1 :].astype(np.float32)

    def _leave_estate(self, orders: Orders) -> None:
        """Where others are to take this one's weights: leave them as they are now."""
        heirs = orders.parents == self._config.member
        heirs[self._config.member] = False
        ticket = int(orders.tickets[heirs].max(initial=0))
        if ticket > self._left_estate:
            self._left_estate = ticket
            self._own_estate.publish(Parameters(self._estate(), ticket))

    def _estate(self) -> np.ndarray:
        """Weights, then the state of who applies gradients."""
        state = self._gradients.state()
        arrays = [self._flat.vector.detach().cpu().numpy(), *(state[name] for name in state)]
        return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])

    def _take_over(self, parent: int, ticket: int) -> bool:
        if self._estates[parent].pull(self._estate_vector, newer_than=ticket - 1) is None:
            return False
        size, state = self._flat.size, self._gradients.state()
        self._flat.load(self._estate_vector[:size])
        for name, array in state.items():
            taken = self._estate_vector[size : size + array.size]
            state[name] = taken.reshape(array.shape).copy()
            size += array.size
        self._gradients.load_state(state)
        self._updated(self._version + 1)
        self._generation, self._own_rows.first_version = ticket, self._version
        self._standing.publish(Parameters(np.array([ticket], np.float32), self._version))
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
