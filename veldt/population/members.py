# SPDX-License-Identifier: Apache-2.0
"""The actors and learners of a population's members, and how a population is built.

An architecture is built once per member, as if it were trained alone, and a controller is added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from itertools import zip_longest
from typing import Any

import numpy as np

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.errors import ConfigurationError
from veldt.optimizers import state_size
from veldt.population.controller import (
    Generations,
    Orders,
    PopulationController,
    scores_layout,
)
from veldt.population.rules import PopulationOptions
from veldt.ports import ExperienceSink, ParameterSink, ParameterSource
from veldt.problem import Problem
from veldt.role import EndLike, Role, bound
from veldt.roles.actor import Actor, EnvironmentGroup
from veldt.roles.learner import Learner
from veldt.roles.trajectory_sources import NewerRows
from veldt.topology import Channel, End, Node, RequestsSpec, Topology, numbered_name
from veldt.types import ORDERS, Parameters

_START = 0x9B7  # separates the stream of the first hyperparameters from other streams of a seed
_MESSAGES_PER_ACTOR = 4


@dataclass(eq=False, kw_only=True)
class PopulationActor(Actor):
    """Sends its policy's returns and steps to the controller once per trajectory."""

    member: int
    scores: ExperienceSink
    generation: ParameterSource

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._known = Generations([self.generation])
        width = self.environments.width
        self._begun_in = [np.zeros(width, np.int64) for _ in self._groups]
        """Per group and environment: the generation in which its episode began."""
        self._over = [np.ones(width, bool) for _ in self._groups]
        self._episodes: list[tuple[int, float]] = []
        """(generation, return) of finished episodes that were not sent yet."""
        self._steps = 0

    def _ask(self, group: EnvironmentGroup) -> None:
        # A lost life begins no new game, so an episode begins only after one was over.
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
        slot = self.scores.reserve()
        if slot is None:
            return  # the queue is full; this is sent with the next trajectory
        sent = self._episodes[: slot["generation"].size]
        slot["policy"][0], slot["env_steps"][0] = self.member, self._steps
        slot["count"][0] = len(sent)
        slot["generation"][: len(sent)] = [generation for generation, _ in sent]
        slot["episode_return"][: len(sent)] = [total for _, total in sent]
        self.scores.commit(slot)
        del self._episodes[: len(sent)]
        self._steps = 0


@dataclass(eq=False, kw_only=True)
class PopulationLearner(Learner):
    """Follows the controller's orders between two updates.

    It adopts the learning rate and entropy coefficient that are ordered. When its policy is to be
    replaced, it waits for the parent's snapshot (weights and optimizer state), continues from there
    under a new version, and discards rows of older versions from then on.
    """

    member: int
    learning_rate: float
    """The one its optimizer was made with."""
    orders: ParameterSource
    snapshot: ParameterSink
    snapshots: list[ParameterSource]
    """Weights and optimizer states by member; `snapshot` is this member's own."""
    generation: ParameterSink
    known_generation: ParameterSource
    """The board of its last replacement, to write and to read after a restart."""

    def open(self, context: NodeContext) -> None:
        super().open(context)
        own = Generations([self.known_generation])
        self._generation = int(own.generations[0])
        self._newer_rows = NewerRows(context, self.source, int(own.first_versions[0]))
        self.source = self._newer_rows
        self._order_vector = np.empty(Orders.vector_size(len(self.snapshots)), np.float32)
        self._orders_version = -1
        self._orders: Orders | None = None
        self._snapshot_vector = self._snapshot()
        before = self.snapshots[self.member].pull(self._snapshot_vector, newer_than=-1)
        self._published_snapshot = 0 if before is None else before
        self._learning_rate_factor = 1.0

    def _begin(self) -> bool:
        return self._follow_orders() and super()._begin()

    def _follow_orders(self) -> bool:
        """False while a parent's snapshot is not there yet."""
        newer = self.orders.pull(self._order_vector, newer_than=self._orders_version)
        if newer is not None:
            self._orders_version = newer
            self._orders = Orders.from_vector(self._order_vector, len(self.snapshots))
            learning_rate, entropy = self._orders.hyperparameters[self.member].tolist()
            self._learning_rate_factor = learning_rate / self.learning_rate
            self.objective.adjust_entropy(entropy)
            self._publish_snapshot(self._orders)
        if self._orders is None:
            return False
        replacement = int(self._orders.replacements[self.member])
        if replacement <= self._generation:
            return True
        return self._take_over(int(self._orders.parents[self.member]), replacement)

    def _publish_snapshot(self, orders: Orders) -> None:
        """Publish the present weights if another member is to continue from them."""
        children = orders.parents == self.member
        children[self.member] = False
        replacement = int(orders.replacements[children].max(initial=0))
        if replacement > self._published_snapshot:
            self._published_snapshot = replacement
            self.snapshot.publish(Parameters(self._snapshot(), replacement))

    def _snapshot(self) -> np.ndarray:
        """Weights, then the optimizer's state."""
        state = self.gradients.state()
        arrays = [self._flat.vector.detach().cpu().numpy(), *state.values()]
        return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])

    def _take_over(self, parent: int, replacement: int) -> bool:
        board, vector = self.snapshots[parent], self._snapshot_vector
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
        self.generation.publish(Parameters(number, self._version))
        return True

    def _learning_rate_scale(self) -> float:
        return super()._learning_rate_scale() * self._learning_rate_factor


Build = Callable[[Any, Problem], Topology]


def with_population(build: Build) -> Build:
    """The function `build` of an architecture, extended to train several policies.

    Its Config needs the groups `population` (PopulationOptions), `loss` and `optimizer`. Channels
    and nodes of each member have the names that `build` gives them, numbered.
    """

    @wraps(build)
    def built(config: Any, problem: Problem) -> Topology:
        if config.population.num_policies == 1:
            return build(config, problem)
        return _joined(_members(build, config, problem), config, problem.seed)

    return built


def _members(build: Build, config: Any, problem: Problem) -> list[Topology]:
    """The architecture for each member, with its share of the actors and env steps."""
    size = config.population.num_policies
    if size > problem.num_actors * problem.envs_per_actor:
        raise ConfigurationError(
            f"{size} policies need as many environments; raise --envs-per-actor"
        )
    problem, built = problem.per_learner(size), []
    for member in range(size):
        num_actors = len(range(member, problem.num_actors, size))
        own = replace(problem, seed=problem.seed + member, num_actors=num_actors)
        built.append(build(config, own))
    return built


def _joined(members: list[Topology], config: Any, seed: int) -> Topology:
    """The topologies of all members in one, and their controller."""
    topology = Topology(members[0].network)
    for name in ("queues", "boards", "shared", "requests", "streams"):
        for member, own in enumerate(members):
            getattr(topology, name).extend(
                replace(handle, spec=_renamed(handle.spec, member)) for handle in getattr(own, name)
            )
    network, optimizer, size = topology.network, config.optimizer, len(members)
    defaults = (optimizer.learning_rate, config.loss.entropy_coefficient)
    first = _first_values(config.population, defaults, seed)
    orders = topology.board(ORDERS, Orders.start(first).to_vector())
    snapshot = np.zeros(network.size() + state_size(optimizer, network.num_trained()), np.float32)
    snapshots = [topology.board(f"snapshot-{m}", snapshot) for m in range(size)]
    generations = [topology.board(f"generation-{m}", np.zeros(1, np.float32)) for m in range(size)]
    num_actors = sum(len(member.of("actor")) for member in members)
    scores = topology.queue("scores", scores_layout(), _MESSAGES_PER_ACTOR * num_actors)

    def of_population(role: Role, member: int) -> Role:
        generation = generations[member]
        if isinstance(role, Actor):
            return PopulationActor(
                **_settings(role),
                member=member,
                scores=scores.sink,
                generation=generation.source(),
            )
        if isinstance(role, Learner):
            return PopulationLearner(
                **_settings(role),
                member=member,
                learning_rate=optimizer.learning_rate,
                orders=orders.source(),
                snapshot=snapshots[member].sink,
                snapshots=[board.source() for board in snapshots],
                generation=generation.sink,
                known_generation=generation.source(),
            )
        return role

    # Kind by kind, the members alternating.
    for kind in members[0].kinds():
        for row in zip_longest(*(own.of(kind) for own in members)):
            for member, node in enumerate(row):
                if node is not None:
                    role = bound(node.role, partial(_reconnected, member=member))
                    name = f"{kind}-{node.index * size + member}"
                    made = Node(name, of_population(role, member), node.index, kind)
                    topology.nodes.append(made)
    topology.add(
        "population",
        PopulationController(
            scores.source(),
            orders.sink,
            orders.source(),
            [board.source() for board in generations],
            config.population,
            defaults,
        ),
    )
    return topology


def _reconnected(end: EndLike, member: int) -> EndLike:
    assert isinstance(end, End)
    return replace(end, channel=_renamed(end.channel, member))


def _renamed(channel: Channel, member: int) -> Channel:
    name = numbered_name(channel.name, member)
    if isinstance(channel, RequestsSpec):
        queue = replace(channel.queue, name=numbered_name(channel.queue.name, member))
        return replace(channel, name=name, queue=queue)
    return replace(channel, name=name)


def _settings(role: Actor | Learner) -> dict[str, Any]:
    return {entry.name: getattr(role, entry.name) for entry in fields(role) if entry.init}


def _first_values(options: PopulationOptions, defaults: tuple[float, ...], seed: int) -> np.ndarray:
    """Hyperparameters [P, H]: policy 0 begins as configured, the others perturbed."""
    start = np.array(defaults)
    rule = options.rule(start, np.random.default_rng([seed, _START]))
    others = [rule.perturbed(start) for _ in range(1, options.num_policies)]
    values = np.stack([start, *others])
    if options.pbt_learning_rates:
        values[:, 0] = options.pbt_learning_rates
    return values
