# SPDX-License-Identifier: Apache-2.0
"""Live channels without a backend, and a look into the roles of a serial run."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self, TypeVar

from veldt.backends.serial import SerialBackend
from veldt.backends.shared_memory.fabric import build_fabric
from veldt.context import NodeContext
from veldt.networks import NetworkFactory
from veldt.options import RunOptions
from veldt.role import EndLike, Role, bound
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Topology

R = TypeVar("R", bound=Role)


class FactoryOf(NetworkFactory):
    """A factory of whatever module `make` makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        object.__setattr__(self, "_make", make)

    def make(self) -> Any:
        return self._make()

    def blank(self) -> Any:
        return self._make()

    def outline(self) -> Any:
        return self._make()


def context(name: str = "node-0", index: int = 0, seed: int = 0) -> NodeContext:
    return NodeContext(name, index, seed, NodeTelemetry())


def counted(told: NodeContext, name: str) -> float:
    return told.telemetry.snapshot().counters.get(name, 0.0)


def live(topology: Topology) -> Callable[[Any], Any]:
    """Opens the ends of a topology's channels, also those in parts, as ports of one bystander."""
    bystander = topology.add("bystander", Role())
    fabric = build_fabric(topology, between_processes=False, verify=False)

    def port(end: EndLike) -> Any:
        return fabric.open(bystander, end, holder=1)  # type: ignore[arg-type]

    return lambda part: bound(part, port)


def opened(role: R, told: NodeContext) -> R:
    """The role, alive; its ends are live already."""
    role.open(told)
    return role


class OpenRun:
    """A serial run whose nodes are stepped by hand."""

    def __init__(self, architecture: str, env: str = "CartPole-v1", **options: Any) -> None:
        width = options.pop("envs_per_actor", 4)
        known = {entry.name for entry in fields(RunOptions)} & set(options)
        common = {name: options.pop(name) for name in known}
        plan = make_plan(
            architecture,
            RunOptions(env=env, backend="serial", envs_per_actor=width, quiet=True, **common),
            options,
        )
        self.topology = plan.topology
        self.backend = SerialBackend(plan.topology, plan.options.seed)
        self.backend.start()
        self.nodes = {node.name: node for node in self.backend._nodes}

    def role(self, name: str) -> Any:
        return self.nodes[name].role

    def step(self, *names: str) -> None:
        for name in names or self.nodes:
            self.nodes[name].step()

    def counter(self, name: str) -> float:
        return sum(each.counters.get(name, 0.0) for each in self.backend.snapshots())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.backend.stop()
