# SPDX-License-Identifier: Apache-2.0
"""Whether the actors of a run may come and go, and which they are."""

from __future__ import annotations

from types import ModuleType

from veldt.backends.elastic import Elastic, needed_writers
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.roles.actor import Actor
from veldt.topology import WRITING_SIDES, Node, QueueSpec, StreamSpec, Topology


def elastic_actors(topology: Topology, options: RunOptions) -> Elastic | None:
    """The actors of which some may be missing; None where all are there from the start."""
    given = options.actors()
    if given is None or not options.is_elastic:
        return None
    names = frozenset(node.name for node in _actors(topology))
    return Elastic(names, min(given[0], len(names)), needed_writers(topology, names))


def check_elastic(topology: Topology, options: RunOptions, module: ModuleType) -> None:
    """Refuse MIN..MAX, with the reason, where the system needs all of its actors."""
    elastic = elastic_actors(topology, options)
    if elastic is None:
        return
    reason = getattr(module, "WHY_NOT_ELASTIC", None) or _why_not(topology)
    if reason is not None:
        raise ConfigurationError(
            f"num_actors {options.num_actors}: {reason}; give one number of actors"
        )
    if elastic.least < elastic.needed:
        most = len(elastic.groups)
        raise ConfigurationError(
            f"num_actors {options.num_actors}: a batch takes the trajectories of {elastic.needed}"
            f" actors; use {elastic.needed}..{most}, or lower --batch-trajectories"
        )


def _actors(topology: Topology) -> list[Node]:
    return [node for node in topology.nodes if isinstance(node.role, Actor)]


def _why_not(topology: Topology) -> str | None:
    name, actors = topology.architecture, _actors(topology)
    if not actors:
        return f"{name} has no actors here, but clients, which come and go as they like"
    if any(isinstance(node.role, Actor) and node.role.synchronous for node in actors):
        return f"each batch of {name} holds a trajectory of every actor, so none may be missing"
    alone = {group.nodes[0].name for group in topology.groups() if len(group.nodes) == 1}
    if any(node.name not in alone for node in actors):
        return f"the actors of {name} share their processes with other nodes, which must stay"
    if len({frozenset(_fed(node)) for node in actors}) > 1:
        return (
            f"the actors of {name} are divided among several learners here, and a cluster that"
            " shrinks may take all of one learner's"
        )
    return None


def _fed(node: Node) -> list[str]:
    """Where an actor's experience goes."""
    return [
        end.channel.name
        for _, end in node.ends()
        if end.side in WRITING_SIDES and isinstance(end.channel, QueueSpec | StreamSpec)
    ]
