# SPDX-License-Identifier: Apache-2.0
"""Two learners that take every step together, in two processes: what a step costs over Veldt's own
channels (gradients to the first learner, weights back over the board) and over torch.distributed
with gloo (all-reduce; each learner steps for itself). Gradients are given, so that only the
exchange, the optimizer and the publication to actors are measured.

Writes benchmarks/results/learner_group.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measuring import machine, median, print_table, save

from veldt.backends.shared_memory.channels import BoardMemory
from veldt.backends.shared_memory.fabric import Fabric, build_fabric
from veldt.backends.shared_memory.signals import Doorbell
from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.ports import Gradient, GradientSink
from veldt.role import bound
from veldt.roles.gradients.synchronous_group import synchronous_group
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeTelemetry
from veldt.topology import Node, Topology
from veldt.types import ActionSpec, EnvironmentSpec, ObservationLeaf, Parameters

_SPEC = EnvironmentSpec(
    "Given-v0",
    (ObservationLeaf("observation", (16,), "float32", "vector"),),
    ActionSpec("discrete", (4,)),
)
_OPTIMIZER = OptimizerOptions("rmsprop", 1e-4, max_grad_norm=0.5)
_Stages = dict[str, float]


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: _Stages = defaultdict(float)

    @contextmanager
    def stage(self, name: str):
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began


def gradients_of(flat: FlatParameters, learner: int) -> Gradient:
    generator = torch.Generator().manual_seed(learner)
    return Gradient(torch.randn(flat.num_trained, generator=generator), 0)


def over_channels(network: NetworkFactory, updates: int) -> tuple[list[Any], np.ndarray]:
    topology = Topology(network)
    weights = topology.board("weights", network)
    sinks = synchronous_group(topology, weights, _OPTIMIZER, 2, "mean")
    nodes = [topology.add("learner", sink) for sink in sinks]  # type: ignore[arg-type]
    fabric = build_fabric(topology, between_processes=True, verify=False)
    fabric.doorbells = {node.name: Doorbell() for node in nodes}
    jobs = [(_channel_learner, (fabric, node, index, network)) for index, node in enumerate(nodes)]
    rows = in_processes(jobs, updates)
    return rows, fabric.boards["weights"].newest().vector


def _channel_learner(
    fabric: Fabric, node: Node, index: int, network: NetworkFactory, updates: int
) -> _Stages:
    flat, clock = FlatParameters(network.make()), Clock()
    sink: GradientSink = bound(node.role, lambda end: fabric.open(node, end, index + 1))  # type: ignore[type-var,assignment,arg-type]
    sink.open(context_of(node.name), flat)
    given, bell, board = gradients_of(flat, index), fabric.doorbells, fabric.boards["weights"]
    own, other = bell[f"learner-{index}"], bell[f"learner-{1 - index}"]
    version, sent = 0, False

    def published(newest: int) -> None:
        if index == 0:
            with clock.stage("publish"):
                board.publish(Parameters(flat.numpy(), newest))
            other.ring()

    while version < updates or sent:
        with clock.stage("exchange and step"):
            ready = sink.begin(version)
        if ready is None:
            with clock.stage("wait"):
                own.wait(0.01)
            continue
        if sent:
            version, sent = ready, False
            published(version)
            continue
        with clock.stage("exchange and step"):
            stepped = sink.apply(Gradient(given.vector, version, rows=1))
        other.ring()
        if stepped is not None:
            version = stepped
            published(version)
        else:
            sent = True
    return dict(clock.seconds)


def over_gloo(network: NetworkFactory, updates: int) -> tuple[list[Any], np.ndarray]:
    topology = Topology(network)
    topology.board("weights", network)
    fabric = build_fabric(topology, between_processes=True, verify=False)
    with tempfile.NamedTemporaryFile(prefix="veldt-gloo-") as file:
        meeting = f"file://{file.name}-meeting"
        board = fabric.boards["weights"]
        jobs = [(_gloo_learner, (board, rank, meeting, network)) for rank in range(2)]
        rows = in_processes(jobs, updates)
    return rows, fabric.boards["weights"].newest().vector


def _gloo_learner(
    board: BoardMemory, rank: int, meeting: str, network: NetworkFactory, updates: int
) -> _Stages:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    flat, clock = FlatParameters(network.make()), Clock()
    optimizer = make_optimizer(_OPTIMIZER, flat.vector[: flat.num_trained])
    given, total = gradients_of(flat, rank), torch.empty(flat.num_trained)
    for version in range(1, updates + 1):
        with clock.stage("all-reduce"):
            torch.mul(given.vector, 0.5, out=total)
            dist.all_reduce(total)
        with clock.stage("step"):
            optimizer.step(total)
        if rank == 0:
            with clock.stage("publish"):
                board.publish(Parameters(flat.numpy(), version))
    dist.destroy_process_group()
    return dict(clock.seconds)


def context_of(name: str) -> NodeContext:
    return NodeContext(name, 0, 0, NodeTelemetry(memoryview(bytearray(TELEMETRY_BYTES))))


def in_processes(jobs: list[tuple[Callable[..., _Stages], tuple[Any, ...]]], updates: int) -> Any:
    """Each job in a process of its own: one update to warm up, then `updates`; rows of both."""
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    began = time.perf_counter()
    children = [
        context.Process(target=_report, args=(results, call, *given, updates), daemon=True)
        for call, given in jobs
    ]
    for child in children:
        child.start()
    rows = sorted((results.get(timeout=120) for _ in children), key=lambda row: row["job"])
    for child in children:
        child.join(10)
    return [row | {"wall_seconds": time.perf_counter() - began} for row in rows]


def _report(results: Any, call: Callable[..., _Stages], *given: Any) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    stages = call(*given)
    results.put({"job": str(given[1]), "seconds": time.perf_counter() - began, "stages": stages})


def per_step(rows: list[dict[str, Any]], updates: int) -> float:
    """Milliseconds of one step: the longest of what the two learners spent on their stages."""
    return max(sum(row["stages"].values()) for row in rows) / updates * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=3150, help="of two hidden layers")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = NetworkOptions(hidden_sizes=(arguments.width, arguments.width))
    network = NetworkFactory(shape, _SPEC, "policy_value")
    payload: dict[str, Any] = {"machine": machine(), "weights": network.size(), "rounds": []}
    for _ in range(arguments.rounds):
        row: dict[str, Any] = {}
        vectors = []
        for name, exchange in (("channels", over_channels), ("gloo", over_gloo)):
            learners, vector = exchange(network, arguments.updates)
            row[f"{name}_ms"] = per_step(learners, arguments.updates)
            row[f"{name}_stages_ms"] = [
                {stage: spent / arguments.updates * 1e3 for stage, spent in one["stages"].items()}
                for one in learners
            ]
            vectors.append(vector)
        row["largest_difference"] = float(np.abs(vectors[0] - vectors[1]).max())
        payload["rounds"].append(row)
    for name in ("channels", "gloo"):
        payload[f"{name}_ms"] = median([row[f"{name}_ms"] for row in payload["rounds"]])
    payload["gloo_is_times_as_fast"] = payload["channels_ms"] / payload["gloo_ms"]
    print(f"wrote {save('learner_group', payload)}\n")
    header = ("channels_ms", "gloo_ms", "largest_difference")
    print_table(header, [tuple(row[n] for n in header) for row in payload["rounds"]])
    print(payload["rounds"][-1])


if __name__ == "__main__":
    main()
