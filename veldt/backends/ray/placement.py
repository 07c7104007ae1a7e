# SPDX-License-Identifier: Apache-2.0
"""Where on a Ray cluster the processes of a run live.

What others depend on (a learner, a replay, a server) has a reservation, on the driver's node if it
fits there: losing another node then costs actors only, and no actor takes a dead learner's place.
"""

from __future__ import annotations

from typing import Any

from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from veldt.backends.ray.cluster import ray
from veldt.backends.ray.host import Host
from veldt.backends.ray.node import NodeHost
from veldt.backends.ray.wiring import Wiring
from veldt.topology import Group

_SPARE_CALLS = 64  # beside deliveries, a process answers few calls at a time


class Placement:
    """Each group's share of the cluster, decided once: a cluster that shrinks must not fill up."""

    def __init__(self, wiring: Wiring, may_grow: bool = False) -> None:
        """`may_grow`: machines will come for those that do not fit now, so that each process asks
        for a CPU of its own."""
        self._wiring = wiring
        total, groups = ray.cluster_resources(), list(wiring.groups.values())
        num_wanting = sum(_wants_gpu(group) for group in groups)
        self._cpus = 1.0 if may_grow else _fraction(total.get("CPU", 1.0), len(groups))
        self._gpus = _fraction(total.get("GPU", 1.0), num_wanting) if num_wanting else 0.0
        here = ray.get_runtime_context().get_node_id()
        self._reservations = {
            group.name: ray.util.placement_group(
                [self.needs(group)], strategy="STRICT_PACK", _soft_target_node_id=here
            )
            for group in groups
            if wiring.has_dependents(group.name)
        }

    def needs(self, group: Group) -> dict[str, float]:
        """What the group's process asks of the cluster."""
        return {"CPU": self._cpus} | ({"GPU": self._gpus} if _wants_gpu(group) else {})

    def place(self, group: Group, incarnation: int) -> Host:
        """Ask Ray for a process; it may be a while before there is room for it."""
        needs, reservation = self.needs(group), self._reservations.get(group.name)
        strategy: Any = "SPREAD"
        if reservation is not None:
            strategy = PlacementGroupSchedulingStrategy(reservation)
        options = {
            "num_cpus": needs["CPU"],
            "num_gpus": needs.get("GPU", 0.0),
            "scheduling_strategy": strategy,
            "max_concurrency": 2 * self._wiring.calls_at_a_time(group.name) + _SPARE_CALLS,
            "max_restarts": 0,  # restarts are ours: a successor has to be connected
            "max_task_retries": -1,  # a call is repeated until it was answered or its process died
        }
        return Host(group, incarnation, ray.remote(NodeHost).options(**options).remote())

    def release(self) -> None:
        for reservation in self._reservations.values():
            ray.util.remove_placement_group(reservation)
        self._reservations = {}


def _fraction(available: float, num_groups: int) -> float:
    """A whole unit for each group where there are enough, else an even part of half of them."""
    return 1.0 if available >= num_groups else round(available / (2 * num_groups), 3)


def _wants_gpu(group: Group) -> bool:
    return any(node.role.device().startswith("cuda") for node in group.nodes)
