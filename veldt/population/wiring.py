# SPDX-License-Identifier: Apache-2.0
"""Builds a population: the architecture once per member, and a controller for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from veldt.errors import ConfigurationError
from veldt.losses.actor_critic import TargetOptions
from veldt.optimizers import OptimizerOptions, state_size
from veldt.population.controller import PopulationController
from veldt.population.member import PopulationActor, PopulationLearner, PopulationMember, Scoring
from veldt.population.options import PopulationOptions
from veldt.population.orders import Orders, scores_layout
from veldt.problem import Problem
from veldt.role import EndLike, Role, bound
from veldt.roles.actor import Actor
from veldt.roles.learner import Learner
from veldt.topology import Board, Channel, End, Node, RequestsSpec, Topology, numbered_name
from veldt.types import ORDERS

_START = 0x9B7  # separates the stream of the first hyperparameters from other streams of a seed
_MESSAGES_PER_ACTOR = 4
SomeRole = TypeVar("SomeRole", bound=Role)


@runtime_checkable
class HasPopulation(Protocol):
    """The Config of an architecture that several policies can be trained with."""

    @property
    def population(self) -> PopulationOptions: ...

    @property
    def loss(self) -> TargetOptions: ...

    @property
    def optimizer(self) -> OptimizerOptions: ...


def build_population(
    build: Callable[[Any, Problem], Topology], config: HasPopulation, problem: Problem
) -> Topology:
    """Several policies of the architecture that `build` wires, and their controller.

    Each member has its own actors, channels and learner, as if it were trained alone; its channels
    and nodes have the names that `build` gives them, numbered.
    """
    size = config.population.num_policies
    if size > problem.num_actors * problem.envs_per_actor:
        raise ConfigurationError(
            f"{size} policies need as many environments; raise --envs-per-actor"
        )
    members = _members(build, config, problem)
    topology = _joined(members)
    network, optimizer = topology.network, config.optimizer
    defaults = (optimizer.learning_rate, config.loss.entropy_coefficient)
    first = _first_values(config.population, defaults, problem.seed)
    orders = topology.board(ORDERS, Orders.start(first).to_vector())
    snapshot = np.zeros(network.size() + state_size(optimizer, network.num_trained()), np.float32)
    snapshots = [topology.board(f"snapshot-{m}", snapshot) for m in range(size)]
    generations = [topology.board(f"generation-{m}", np.zeros(1, np.float32)) for m in range(size)]
    num_actors = sum(len(member.of("actor")) for member in members)
    scores = topology.queue("scores", scores_layout(), _MESSAGES_PER_ACTOR * num_actors)
    own_nodes = _nodes_of(members)
    for member, node in own_nodes:
        if isinstance(node.role, Actor):
            scoring = Scoring(member, scores.sink, generations[member].source())
            node.role = _extended(PopulationActor, node.role, scoring=scoring)
        elif isinstance(node.role, Learner):
            membership = PopulationMember(
                member,
                optimizer.learning_rate,
                orders.source(),
                snapshots[member].sink,
                _sources(snapshots),
                generations[member].sink,
                generations[member].source(),
            )
            node.role = _extended(PopulationLearner, node.role, membership=membership)
    topology.nodes += [node for _, node in own_nodes]
    topology.add(
        "population",
        PopulationController(
            scores.source(),
            orders.sink,
            orders.source(),
            _sources(generations),
            config.population,
            defaults,
        ),
    )
    return topology


def _members(
    build: Callable[[Any, Problem], Topology], config: HasPopulation, problem: Problem
) -> list[Topology]:
    """The architecture for each member, with its share of the actors and env steps."""
    size = config.population.num_policies
    num_actors, steps = max(problem.num_actors, size), problem.total_env_steps
    alone: Any = replace(cast(Any, config), population=PopulationOptions())
    built = []
    for member in range(size):
        own = replace(
            problem,
            seed=problem.seed + member,
            num_actors=len(range(member, num_actors, size)),
            total_env_steps=None if steps is None else round(steps / size),
        )
        built.append(build(alone, own))
    return built


def _joined(members: list[Topology]) -> Topology:
    """A topology with the channels of all members and no nodes yet."""
    topology = Topology(members[0].network)
    for name in ("queues", "boards", "shared", "requests", "streams"):
        for member, own in enumerate(members):
            getattr(topology, name).extend(
                replace(handle, spec=_renamed(handle.spec, member)) for handle in getattr(own, name)
            )
    return topology


def _nodes_of(members: list[Topology]) -> list[tuple[int, Node]]:
    """The nodes of all members with numbered names, kind by kind, the members alternating."""
    found = []
    for kind in members[0].kinds():
        for row in zip_longest(*(own.of(kind) for own in members)):
            for member, node in enumerate(row):
                if node is not None:
                    number = node.index * len(members) + member
                    role = bound(node.role, partial(_reconnected, member=member))
                    found.append((member, Node(f"{kind}-{number}", role, node.index, kind)))
    return found


def _reconnected(end: EndLike, member: int) -> EndLike:
    assert isinstance(end, End)
    return replace(end, channel=_renamed(end.channel, member))


def _renamed(channel: Channel, member: int) -> Channel:
    name = numbered_name(channel.name, member)
    if isinstance(channel, RequestsSpec):
        queue = replace(channel.queue, name=numbered_name(channel.queue.name, member))
        return replace(channel, name=name, queue=queue)
    return replace(channel, name=name)


def _extended(kind: type[SomeRole], role: Role, **more: Any) -> SomeRole:
    """The same role as one of a population."""
    settings = {entry.name: getattr(role, entry.name) for entry in fields(role) if entry.init}
    return kind(**settings, **more)


def _first_values(options: PopulationOptions, defaults: tuple[float, ...], seed: int) -> np.ndarray:
    """Hyperparameters [P, H]: policy 0 begins as configured, the others perturbed."""
    random, rule = np.random.default_rng([seed, _START]), options.rule()
    start = np.array(defaults)
    others = [rule.perturbed(start, start, random) for _ in range(1, options.num_policies)]
    values = np.stack([start, *others])
    if options.pbt_learning_rates:
        values[:, 0] = options.pbt_learning_rates
    return values


def _sources(boards: list[Board]) -> list:
    return [board.source() for board in boards]
