# SPDX-License-Identifier: Apache-2.0
"""Several Ray nodes on this machine: SEED RL trained to 475 with its actors on other nodes, a node
lost and another added during a run, and calls between nodes that fail at random.

Writes benchmarks/results/ray_nodes.json. It needs `openssl`, for TLS between the nodes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import ROOT, machine, print_table, save, train

sys.path.insert(0, str(ROOT / "tests" / "backends"))  # the roles and learners that keep account
import tiny_roles as roles
from auditing import audited
from several_nodes import SeveralNodes, several_nodes

from veldt.backends.base import BackendOptions, NodeFailure
from veldt.backends.ray.backend import RayBackend
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.topology import Topology

Row = dict[str, Any]
_LIMIT_SECONDS = 300.0
_FAILURES = {"req_failure_prob": 25, "resp_failure_prob": 25, "in_flight_failure_prob": 10}
"""Percent of calls whose request is lost, whose answer is lost, and that fail while they run."""
_CALL = "CoreWorkerService.grpc_client.PushTask"
_SHORT_WAITS = {
    "RAY_timeout_ms_task_wait_for_death_info": "50",
    "RAY_core_worker_internal_heartbeat_ms": "50",
}
"""Ray waits a second for news of a death, and up to another one, before it repeats a call."""


def learning(nodes: SeveralNodes, arguments: argparse.Namespace) -> list[Row]:
    """One actor on each node but the head, where inference and learner are."""
    os.environ["RAY_ADDRESS"] = nodes.address
    rows = []
    for seed in range(1, arguments.seeds + 1):
        done = train(
            "seed_rl",
            arguments.max_seconds + _LIMIT_SECONDS,
            env="CartPole-v1",
            backend="ray",
            seed=seed,
            num_actors=2,
            batch_trajectories=2,
            target_return=475,
            max_seconds=arguments.max_seconds,
        )
        names = ("reached_target", "seconds_to_target", "env_steps", "evaluation_return")
        names += ("start_seconds", "env_steps_per_second", "restarts", "dropped")
        rows.append({"seed": seed, **{name: done.result[name] for name in names}})
        lag = done.result["policy_lag"]
        rows[-1] |= {"lag_mean": lag["mean"], "lag_max": lag["max"]}
    del os.environ["RAY_ADDRESS"]
    return rows


class Watched:
    """A run, how much of it is committed, and the longest time in which nothing was."""

    def __init__(self, topology: Topology) -> None:
        self.backend = RayBackend(topology, seed=1, options=BackendOptions(verify=True))
        self.longest_pause_seconds = 0.0
        self._committed, self._moved_at = 0.0, 0.0

    def counted(self, name: str) -> float:
        return sum(snapshot.counters.get(name, 0.0) for snapshot in self.backend.snapshots())

    def advance(self) -> None:
        self.backend.advance(0.05)
        now, committed = time.monotonic(), self.counted("trained_env_steps")
        if committed != self._committed or not committed:
            self._committed, self._moved_at = committed, now
        self.longest_pause_seconds = max(self.longest_pause_seconds, now - self._moved_at)

    def until(self, condition: Callable[[], bool]) -> float:
        """Seconds until `condition` holds; TimeoutError when it never does."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > _LIMIT_SECONDS:
                raise TimeoutError("the run did not go on")
            self.advance()
        return time.monotonic() - began

    def rate(self, seconds: float) -> float:
        began, before = time.monotonic(), self.counted("trained_env_steps")
        spent = self.until(lambda: time.monotonic() - began >= seconds)
        return (self.counted("trained_env_steps") - before) / spent


def lost_node(nodes: SeveralNodes, architecture: str, arguments: argparse.Namespace) -> Row:
    """Two actors per node; one node is killed, and later another one comes."""
    victim, *_ = nodes.add(count=2, num_cpus=2)
    options = RunOptions(env="CartPole-v1", backend="ray", num_actors=4, total_env_steps=10**9)
    run = Watched(audited(make_plan(architecture, options, {}).topology))
    try:
        run.backend.start()
        run.until(lambda: run.counted("incarnations") == 4)
        row: Row = {
            "architecture": architecture,
            "steps_per_second_before": rate_of(run, arguments),
        }
        nodes.lose(victim)
        row["seconds_to_detect"] = run.until(lambda: len(run.backend.process_ids()) == 3)
        row["steps_per_second_during"] = rate_of(run, arguments)
        nodes.add(num_cpus=2)
        row["seconds_to_recover"] = run.until(lambda: run.counted("incarnations") == 6)
        row["steps_per_second_after"] = rate_of(run, arguments)
    finally:
        run.backend.stop()
    row["longest_learner_pause_seconds"] = run.longest_pause_seconds
    row |= {name: run.counted(name) for name in ("missing", "repeated")}
    row["unaccounted_env_steps"] = run.counted("trained_env_steps") - run.counted(
        "committed_env_steps"
    )
    return row


def rate_of(run: Watched, arguments: argparse.Namespace) -> float:
    return run.rate(arguments.window_seconds)


def failing_calls(
    arguments: argparse.Namespace, failures: int = 0, waits: dict[str, str] | None = None
) -> Row:
    """Two producers of numbered records on two nodes. The consumer stops the run when one comes
    twice, out of order, or damaged."""
    topology = Topology("records", make_network=object)
    queue = topology.queue("records", roles.record_layout(), 8)
    for _ in range(2):
        topology.add("producer", roles.Producer, sink=queue.sink, limit=arguments.records)
    topology.add("consumer", roles.Consumer, source=queue.source())
    environment = dict(waits or {})
    if failures:
        setting = {_CALL: {"num_failures": failures, **_FAILURES}}
        environment["RAY_testing_rpc_failure"] = json.dumps(setting)
    row: Row = {
        "most_failures_per_process": failures,
        "short_waits": bool(waits),
        "due": 2 * arguments.records,
        "failure": "",
    }
    with several_nodes(**environment) as nodes:
        nodes.add(count=2)
        run = Watched(topology)
        began, row["run_seconds"] = time.monotonic(), math.nan
        try:
            run.backend.start()
            run.until(lambda: run.counted("received") >= row["due"])
            row["run_seconds"] = time.monotonic() - began
            run.rate(2.0)  # time for anything that comes twice
        except (NodeFailure, TimeoutError) as failure:
            row["failure"] = str(failure)
        finally:
            run.backend.stop()
        row["received"], row["restarts"] = run.counted("received"), run.backend.restarts
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=180.0, help="of each training")
    parser.add_argument("--window-seconds", type=float, default=5.0, help="for each throughput")
    parser.add_argument("--records", type=int, default=20_000, help="per producer")
    parser.add_argument("--failures", type=int, default=100, help="at most, per process")
    arguments = parser.parse_args()
    payload: dict[str, Any] = {"machine": machine()}
    with several_nodes() as nodes:
        nodes.add(count=2)
        payload["learning"] = learning(nodes, arguments)
    payload["lost_node"] = []
    for architecture in ("impala", "seed_rl"):
        with several_nodes() as nodes:
            payload["lost_node"].append(lost_node(nodes, architecture, arguments))
    calm = failing_calls(arguments)
    count = arguments.failures
    failing = [failing_calls(arguments, count, waits) for waits in ({}, _SHORT_WAITS)]
    for row in failing:
        row["runtime_ratio"] = row["run_seconds"] / calm["run_seconds"]
    payload["failing_calls"] = [calm | {"runtime_ratio": 1.0}, *failing]
    print(f"wrote {save('ray_nodes', payload)}\n")
    for rows in (payload["learning"], payload["lost_node"], payload["failing_calls"]):
        header = [name for name, value in rows[0].items() if not isinstance(value, dict)]
        print_table(tuple(header), [tuple(row.get(name, "") for name in header) for row in rows])
        print()


if __name__ == "__main__":
    main()
