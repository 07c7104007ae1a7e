# SPDX-License-Identifier: Apache-2.0
"""Two learners that take every step together, in two processes: what a step costs with `--exchange
channels` (gradients to the first learner, weights back over the board) and with `--exchange
all_reduce` (torch.distributed with gloo; each learner steps for itself). Gradients are given, so
that only the exchange, the optimizer and the publication to actors are measured.

Writes benchmarks/results/learner_group.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from measuring import machine, median, print_table, save

from veldt.backends.shared_memory.fabric import Fabric, build_fabric
from veldt.backends.shared_memory.signals import Doorbell
from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.optimizers import OptimizerOptions
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


def exchanged(
    network: NetworkFactory, updates: int, all_reduce: bool
) -> tuple[list[Any], np.ndarray]:
    topology = Topology(network)
    weights = topology.board("weights", network)
    sinks = synchronous_group(topology, weights, _OPTIMIZER, 2, "mean", all_reduce=all_reduce)
    nodes = [topology.add("learner", sink) for sink in sinks]  # type: ignore[arg-type]
    fabric = build_fabric(topology, between_processes=True, verify=False)
    fabric.doorbells = {node.name: Doorbell() for node in nodes}
    jobs = [(_learner, (fabric, node, index, network)) for index, node in enumerate(nodes)]
    rows = in_processes(jobs, updates)
    return rows, fabric.boards["weights"].newest().vector


def _learner(
    fabric: Fabric, node: Node, index: int, network: NetworkFactory, updates: int
) -> _Stages:
    flat, clock = FlatParameters(network.make()), Clock()
    bell, board = fabric.doorbells, fabric.boards["weights"]
    own, other = bell[f"learner-{index}"], bell[f"learner-{1 - index}"]
    sink: GradientSink = bound(node.role, lambda end: fabric.open(node, end, index + 1))  # type: ignore[type-var,assignment,arg-type]
    sink.open(context_of(node.name, own), flat)
    given = gradients_of(flat, index)
    while sink.begin(0) is None:
        own.wait(0.01)
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


def context_of(name: str, bell: Doorbell) -> NodeContext:
    telemetry = NodeTelemetry(memoryview(bytearray(TELEMETRY_BYTES)))
    return NodeContext(name, 0, 0, telemetry, wake=bell.ring)


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
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[90, 300, 980, 3150], help="of two hidden layers"
    )
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    payload: dict[str, Any] = {"machine": machine(), "sizes": []}
    for width in arguments.widths:
        shape = NetworkOptions(hidden_sizes=(width, width))
        network = NetworkFactory(shape, _SPEC, "policy_value")
        payload["sizes"].append(measured(network, arguments.updates, arguments.rounds))
    print(f"wrote {save('learner_group', payload)}\n")
    header = ("weights", "channels_ms", "all_reduce_ms", "is_times_as_fast", "largest_difference")
    print_table(header, [tuple(size[n] for n in header) for size in payload["sizes"]])
    print(payload["sizes"][-1]["rounds"][-1])


def measured(network: NetworkFactory, updates: int, num_rounds: int) -> dict[str, Any]:
    """Both ways in turn, several times, with one size of the network."""
    rounds: list[dict[str, Any]] = []
    for _ in range(num_rounds):
        row: dict[str, Any] = {}
        vectors = []
        for name in ("channels", "all_reduce"):
            learners, vector = exchanged(network, updates, name == "all_reduce")
            row[f"{name}_ms"] = per_step(learners, updates)
            row[f"{name}_stages_ms"] = [
                {stage: spent / updates * 1e3 for stage, spent in one["stages"].items()}
                for one in learners
            ]
            vectors.append(vector)
        row["largest_difference"] = float(np.abs(vectors[0] - vectors[1]).max())
        rounds.append(row)
    medians = {
        f"{name}_ms": median([row[f"{name}_ms"] for row in rounds])
        for name in ("channels", "all_reduce")
    }
    return {
        "weights": network.size(),
        **medians,
        "is_times_as_fast": medians["channels_ms"] / medians["all_reduce_ms"],
        "largest_difference": max(row["largest_difference"] for row in rounds),
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
