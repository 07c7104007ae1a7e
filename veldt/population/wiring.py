# SPDX-License-Identifier: Apache-2.0
"""Wires several policies into a topology: a learner, weights and policy workers for each, and one
controller that trains them as a population. With one policy it adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, Network
from veldt.optimizers import state_size
from veldt.population.actor import CastingConfig, PopulationActor, RemotePoliciesConfig
from veldt.population.column_policy import ColumnPolicy
from veldt.population.column_sorter import ColumnSorter, sorted_layout, with_policies
from veldt.population.controller import ControllerConfig, PopulationController
from veldt.population.learner import MemberConfig, PopulationLearner
from veldt.population.orders import Orders, board_of, scores_layout
from veldt.population.settings import PopulationSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.inference.batched_policy import BatchedPolicy
from veldt.roles.learner import Learner
from veldt.roles.policies.shared_memory import RemotePolicyConfig
from veldt.topology import Board, End, Queue, Requests, Topology
from veldt.types import ORDERS, REWARD_COMPONENTS, Field, Layout

_BATCHES_PER_POLICY = 3  # one is being filled, one waits, one is learned from
_START = 0x9B7  # tells the stream of the first hyperparameters from other streams of a seed


class Population:
    """The policies of a topology, and what their nodes are given beyond those of one policy."""

    def __init__(
        self,
        topology: Topology,
        settings: PopulationSettings,
        problem: Problem,
        make_network: Callable[[], Network],
    ) -> None:
        settings.check()
        self._topology, self._settings, self._problem = topology, settings, problem
        self._optimizer = optimizer = settings.optimizer_config()
        self.size = settings.num_policies
        self.weights = [self._board(policy, make_network) for policy in range(self.size)]
        self.actor: type[Actor] = PopulationActor if self.size > 1 else Actor
        self.learner: type[Learner] = PopulationLearner if self.size > 1 else Learner
        if self.size == 1:
            return
        if self.size > problem.num_actors * problem.envs_per_actor:
            raise ConfigurationError(
                f"{self.size} policies need as many environments; raise --envs-per-actor"
            )
        parts = settings.pbt_reward_components or ("reward",)
        self._names = ("learning_rate", "entropy_coefficient", *(f"weight.{p}" for p in parts))
        entropy = settings.entropy_coefficient
        self._defaults = (optimizer.learning_rate, entropy, *(1.0 for _ in parts))
        flat = FlatParameters(make_network())
        estate = np.zeros(flat.size + state_size(optimizer, flat.num_trained), np.float32)
        names = (f"estate-{policy}" for policy in range(self.size))
        self._estates = [topology.board(name, estate) for name in names]
        self._orders = topology.board(ORDERS, Orders.start(self._first_values()).to_vector())
        names = (f"standing-{policy}" for policy in range(self.size))
        self._standings = [topology.board(name, np.zeros(1, np.float32)) for name in names]
        messages = 4 * problem.num_actors
        self._scores = topology.queue("scores", scores_layout(self.size), messages)

    def _board(self, policy: int, make_network: Callable[[], Network]) -> Board:
        """A policy's weights; each begins from others."""
        assert isinstance(make_network, partial)
        *arguments, seed = make_network.args
        other = partial(make_network.func, *arguments, seed + policy)
        initial = self._problem.initial_weights(other)
        return self._topology.board(board_of(policy), initial.vector, version=initial.version)

    def _first_values(self) -> np.ndarray:
        """Policy 0 begins as configured, the others perturbed."""
        random = np.random.default_rng([self._problem.seed, _START])
        rule, defaults = self._settings.rule(), np.array(self._defaults)
        others = [rule.perturbed(defaults, defaults, random) for _ in range(1, self.size)]
        values = np.stack([defaults, *others])
        if self._settings.pbt_learning_rates:
            values[:, 0] = self._settings.pbt_learning_rates
        return values

    def names(self, stem: str) -> list[str]:
        """Of channels that each policy has one of."""
        return [f"{stem}-{policy}" if policy else stem for policy in range(self.size)]

    def decay_env_steps(self, decay_learning_rate: bool) -> int | None:
        """What one learner gets of the steps of all."""
        total = self._problem.total_env_steps
        return total // self.size if decay_learning_rate and total is not None else None

    def trajectories(self, layout: Layout, mixed: bool = True) -> Layout:
        """With what several policies write; `mixed`: each column may be of another one."""
        parts = self._settings.pbt_reward_components
        if self.size == 1:
            return layout
        if parts:
            shape = (*layout["first"].shape, len(parts))
            field = (REWARD_COMPONENTS, Field(shape, "float32", join_axis=1))
            layout = Layout((*layout.fields, field))
        return with_policies(layout) if mixed else layout

    def for_actor(self, num_steps: int, policy: int | None = None) -> dict[str, Any]:
        """Arguments of an actor; `policy`: the only one it plays."""
        arguments = self._problem.for_actor(num_steps)
        if self.size == 1:
            return arguments
        parts = self._settings.pbt_reward_components
        return arguments | {
            "casting": CastingConfig(self.size, self._settings.policy_per_episode, policy, parts),
            "scores": self._scores.sink,
            "standings": [standing.source() for standing in self._standings],
        }

    def asking(self, requests: list[Requests], actor: int, synchronous: bool) -> dict[str, Any]:
        """How an actor without networks acts; `synchronous`: with weights that have learned from
        its trajectory before."""
        about = self._problem.spec.action, self._problem.network.distribution
        ports = [channel.client(actor) for channel in requests]
        if synchronous and self.size > 1:
            raise ConfigurationError("synchronous goes with one policy; leave num_policies at 1")
        if synchronous:
            [weights] = self.weights
            policy = RemotePolicyConfig(*about, num_weights=weights.initial.size)
            port = [*ports, weights.source()]
            return {"policy": policy, "policy_port": port, "synchronous": True}
        if self.size == 1:
            return {"policy": RemotePolicyConfig(*about), "policy_port": ports[0]}
        return {"policy": RemotePoliciesConfig(*about), "policy_port": ports}

    def acting(self, policy: int) -> Callable[..., BatchedPolicy | ColumnPolicy]:
        """What a policy worker acts with."""
        return BatchedPolicy if self.size == 1 else partial(ColumnPolicy, policy=policy)

    def sorted(self, slots: Queue, trajectories_per_batch: int) -> list[End]:
        """Each learner's source: batches of columns of its own policy."""
        if self.size == 1:
            return [slots.source(trajectories_per_batch)]
        columns = trajectories_per_batch * slots.spec.layout["first"].shape[1]
        layout = sorted_layout(slots.spec.layout, columns)
        names = (f"batches-{policy}" for policy in range(self.size))
        queues = [self._topology.queue(name, layout, _BATCHES_PER_POLICY) for name in names]
        sinks = [queue.sink for queue in queues]
        source = slots.source()
        self._topology.add("sorter", ColumnSorter, source=source, sinks=sinks, layout=layout)
        return [queue.source() for queue in queues]

    def for_learner(self, policy: int, decay_env_steps: int | None) -> dict[str, Any]:
        """Arguments of a policy's learner, whose learning rate falls over its own steps."""
        arguments = self._problem.for_learner(False) | {"total_env_steps": decay_env_steps}
        if self.size == 1:
            return arguments
        member = MemberConfig(policy, self.size, len(self._names), self._optimizer.learning_rate)
        return arguments | {
            "config": member,
            "orders": self._orders.source(),
            "standing": self._standings[policy].sink,
            "estate": self._estates[policy].sink,
            "estates": [estate.source() for estate in self._estates],
            "standings": [standing.source() for standing in self._standings],
        }

    def add_controller(self) -> None:
        if self.size == 1:
            return
        settings = self._settings
        self._topology.add(
            "population",
            PopulationController,
            scores=self._scores.source(),
            orders=self._orders.sink,
            known=self._orders.source(),
            standings=[standing.source() for standing in self._standings],
            config=ControllerConfig(
                settings.rule(),
                self._names,
                self._defaults,
                self.size,
                settings.pbt_start_env_steps,
                settings.pbt_period_env_steps,
                settings.pbt_episodes,
            ),
        )
