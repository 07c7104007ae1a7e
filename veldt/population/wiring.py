# SPDX-License-Identifier: Apache-2.0
"""The channels of a population and the parts that connect its nodes to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veldt.errors import ConfigurationError
from veldt.optimizers import OptimizerOptions, state_size
from veldt.population.actor import Casting
from veldt.population.controller import PopulationController
from veldt.population.learner import Membership
from veldt.population.options import PopulationOptions
from veldt.population.orders import Orders, board_of, scores_layout
from veldt.problem import Problem
from veldt.topology import Board, Topology
from veldt.types import ORDERS, REWARD_COMPONENTS, Field, Layout

_START = 0x9B7  # tells the stream of the first hyperparameters from other streams of a seed


class Population:
    """Policies with weights, orders and scores of their own, laid out in a topology."""

    def __init__(
        self,
        topology: Topology,
        problem: Problem,
        options: PopulationOptions,
        optimizer: OptimizerOptions,
        entropy_coefficient: float,
    ) -> None:
        self.size = options.num_policies
        if self.size > problem.num_actors * problem.envs_per_actor:
            raise ConfigurationError(
                f"{self.size} policies need as many environments; raise --envs-per-actor"
            )
        self._options, self._learning_rate = options, optimizer.learning_rate
        components = options.pbt_reward_components or ("reward",)
        self._names = ("learning_rate", "entropy_coefficient", *(f"weight.{c}" for c in components))
        ones = [1.0 for _ in components]
        self._defaults = (optimizer.learning_rate, entropy_coefficient, *ones)
        network, members = topology.network, range(self.size)
        self.weights = [
            topology.board(board_of(member), replace(network, seed=network.seed + member))
            for member in members
        ]
        trained = state_size(optimizer, network.num_trained())
        snapshot = np.zeros(network.size() + trained, np.float32)
        self._snapshots = [topology.board(f"snapshot-{member}", snapshot) for member in members]
        first = Orders.start(self._first_values(problem.seed)).to_vector()
        self._orders = topology.board(ORDERS, first)
        names = (f"generation-{member}" for member in members)
        self._generations = [topology.board(name, np.zeros(1, np.float32)) for name in names]
        messages = 4 * problem.num_actors
        self._scores = topology.queue("scores", scores_layout(self.size), messages)

    def _first_values(self, seed: int) -> np.ndarray:
        """Policy 0 begins as configured, the others perturbed."""
        random = np.random.default_rng([seed, _START])
        rule, defaults = self._options.rule(), np.array(self._defaults)
        others = [rule.perturbed(defaults, defaults, random) for _ in range(1, self.size)]
        values = np.stack([defaults, *others])
        if self._options.pbt_learning_rates:
            values[:, 0] = self._options.pbt_learning_rates
        return values

    def with_components(self, layout: Layout) -> Layout:
        """Trajectories with the parts of the reward that policies weigh on their own."""
        components = self._options.pbt_reward_components
        if not components:
            return layout
        shape = (*layout["first"].shape, len(components))
        field = (REWARD_COMPONENTS, Field(shape, "float32", join_axis=1))
        return Layout((*layout.fields, field))

    def casting(self, policy: int | None = None, by_episode: bool = False) -> Casting:
        """How an actor's environments are dealt to policies; `policy`: the only one it plays."""
        return Casting(
            self.size,
            self._scores.sink,
            _sources(self._generations),
            by_episode,
            policy,
            self._options.pbt_reward_components,
        )

    def membership(self, policy: int) -> Membership:
        return Membership(
            policy,
            self.size,
            len(self._names),
            self._learning_rate,
            self._orders.source(),
            self._snapshots[policy].sink,
            _sources(self._snapshots),
            self._generations[policy].sink,
            _sources(self._generations),
        )

    def controller(self) -> PopulationController:
        return PopulationController(
            self._scores.source(),
            self._orders.sink,
            self._orders.source(),
            _sources(self._generations),
            self._options,
            self._names,
            self._defaults,
        )


def _sources(boards: list[Board]) -> list:
    return [board.source() for board in boards]
