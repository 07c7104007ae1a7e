# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster that grows and shrinks under a run of IMPALA with --num-actors MIN..MAX: trained
steps per second with each number of machines, and a recount of trajectories by their numbers.

Each machine is a Ray node on this one with an address of its own. Environments sleep in every step,
so that throughput follows the actors and not the cores. Writes benchmarks/results/ray_growing.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from measuring import ROOT, machine, print_table, save
from ray_nodes import Watched

sys.path.insert(0, str(ROOT / "tests" / "backends"))
from auditing import audited
from several_nodes import SeveralNodes, several_nodes

from veldt.options import RunOptions
from veldt.run.elastic import elastic_actors
from veldt.run.plan import make_plan

Row = dict[str, Any]
_MACHINES = (1, 2, 3, 2, 1, 3)
"""How many there are in each phase, besides the one of the learner."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="impala")
    parser.add_argument("--step-ms", type=float, default=20.0, help="that an environment sleeps")
    parser.add_argument("--actors-per-machine", type=int, default=2)
    parser.add_argument("--window-seconds", type=float, default=6.0, help="of each phase")
    arguments = parser.parse_args()
    payload: Row = {"machine": machine()}
    with several_nodes() as nodes:
        payload |= grown_and_shrunk(nodes, arguments)
    print(f"wrote {save('ray_growing', payload)}\n")
    header = tuple(payload["phases"][0])
    print_table(header, [tuple(row[name] for name in header) for row in payload["phases"]])
    print(f"\n{payload['trajectories']}, {payload['actors']}")


def grown_and_shrunk(nodes: SeveralNodes, arguments: argparse.Namespace) -> Row:
    each = arguments.actors_per_machine
    options = RunOptions(
        env=f"veldt:sleeping?step_ms={arguments.step_ms}",
        backend="ray",
        num_actors=f"{each}..{each * max(_MACHINES)}",
        envs_per_actor=8,
        total_env_steps=10**9,
    )
    topology = make_plan(arguments.architecture, options, {}).topology
    there = nodes.add(num_cpus=each)
    run = Watched(audited(topology), elastic_actors(topology, options))
    phases = []
    try:
        run.backend.start()
        for machines in _MACHINES:
            began = time.monotonic()
            while len(there) > machines:
                nodes.lose(there.pop())
            if len(there) < machines:
                there += nodes.add(count=machines - len(there), num_cpus=each)
            phases.append(phase(run, machines, each * machines, began, arguments))
    finally:
        run.backend.stop()
    assert run.backend.actors is not None
    first = phases[0]["trained_steps_per_second"]
    for row in phases:
        row["times_the_first"] = row["trained_steps_per_second"] / first
    return {
        "phases": phases,
        "actors": asdict(run.backend.actors),
        "trajectories": recount(run),
        "longest_learner_pause_seconds": run.longest_pause_seconds,
    }


def phase(
    run: Watched, machines: int, actors: int, began: float, arguments: argparse.Namespace
) -> Row:
    """Wait until the actors are as many as fit, then measure."""
    counts = run.backend.actors
    assert counts is not None
    run.until(lambda: counts.now == actors)
    settled = time.monotonic() - began
    return {
        "machines": machines,
        "actors": counts.now,
        "seconds_to_follow": settled,
        "trained_steps_per_second": run.rate(arguments.window_seconds),
    }


def recount(run: Watched) -> Row:
    """Every trajectory that an actor had handed over is learned from once, or was still on its way
    from a machine that was lost."""
    found = {name: run.counted(name) for name in ("missing", "repeated")}
    trained, committed = run.counted("trained_env_steps"), run.counted("committed_env_steps")
    return {**found, "trained_env_steps": trained, "unaccounted_env_steps": trained - committed}


if __name__ == "__main__":
    main()
