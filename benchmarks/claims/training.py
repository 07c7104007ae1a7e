# SPDX-License-Identifier: Apache-2.0
"""How experiments run things: an ordinary training run, or a serial one that is looked at on its
way. Serial runs give the same numbers again, bit for bit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veldt.api import train_from
from veldt.backends.serial import SerialBackend
from veldt.compare.traffic import item_bytes
from veldt.options import RunOptions
from veldt.roles.ga3c_tuner import TUNING_LOG
from veldt.run.evaluation import Evaluator
from veldt.run.plan import Plan, make_plan
from veldt.telemetry.aggregate import steady_rate
from veldt.telemetry.counters import LagSummary, traffic_name
from veldt.telemetry.log_files import metric_rows
from veldt.telemetry.result import RunResult
from veldt.topology import WRITING_SIDES, Topology, stem

from .claim import Row

_NEVER = 10**12  # env steps between checkpoints: on serial each begins new episodes


@dataclass(frozen=True)
class Training:
    """One finished run; its folder is gone."""

    result: RunResult
    metrics: list[dict[str, Any]]
    tuning: list[dict[str, Any]]
    """Proposals of a controller that tunes while the run goes on."""

    @property
    def trained_steps_per_second(self) -> float:
        return steady_rate(self.metrics, "counter/trained_env_steps")

    @property
    def row(self) -> Row:
        """What most experiments keep of a run."""
        names = ("evaluation_return", "env_steps", "updates", "env_steps_per_second", "bottleneck")
        return {
            **{name: getattr(self.result, name) for name in names},
            "training_return": self.result.mean_return_100,
            "trained_steps_per_second": self.trained_steps_per_second,
            "lag_mean": self.result.policy_lag["mean"],
            "lag_max": self.result.policy_lag["max"],
            "parameters_sha256": self.result.parameters_sha256,
        }


def train(architecture: str, **options: Any) -> Training:
    """An ordinary run with these options, on the CPU unless they say otherwise."""
    with tempfile.TemporaryDirectory(prefix="veldt-claims-") as folder:
        run_dir = Path(folder) / "run"
        given = {
            "device": "cpu",
            "quiet": True,
            "checkpoint_options": {"env_steps": _NEVER},
            **options,
        }
        result = train_from(architecture, {**given, "run_dir": str(run_dir)})
        log = run_dir / TUNING_LOG
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        tuning = [json.loads(line) for line in lines]
        return Training(result, metric_rows(run_dir), tuning)


def serial_options(seed: int, env: str, actors: int, envs: int, **options: Any) -> RunOptions:
    """Of a serial run with so many actors of `envs` environments."""
    given = {"env": env, "num_actors": actors, "envs_per_actor": envs, **options}
    return RunOptions(backend="serial", device="cpu", seed=seed, **given)


class SerialRun:
    """A run on the serial backend that can be stopped at any number of updates.

    `change` may alter the topology before it starts: that is how faults and spies get in."""

    def __init__(
        self,
        architecture: str,
        options: RunOptions,
        own: dict[str, Any],
        change: Callable[[Topology], None] | None = None,
    ) -> None:
        self._plan: Plan = make_plan(architecture, options, own)
        if change is not None:
            change(self._plan.topology)
        self._backend = SerialBackend(self._plan.topology, options.seed)

    def __enter__(self) -> SerialRun:
        self._backend.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._backend.stop()

    @property
    def topology(self) -> Topology:
        return self._plan.topology

    def counters(self) -> dict[str, dict[str, float]]:
        """By node."""
        names = (node.name for node in self.topology.nodes)
        found = zip(names, self._backend.snapshots(), strict=True)
        return {name: snapshot.counters for name, snapshot in found}

    def bytes_between_processes(self) -> float:
        """Of every channel that more than one process group uses, what its readers took."""
        counters = self.counters()
        groups = {n.name: group.name for group in self.topology.groups() for n in group.nodes}
        users: dict[str, set[str]] = {}
        for node in self.topology.nodes:
            for _, end in node.ends():
                users.setdefault(end.channel.name, set()).add(groups[node.name])
        received = 0.0
        for node in self.topology.nodes:
            ends = [end for _, end in node.ends() if len(users[end.channel.name]) > 1]
            for channel, end in {(stem(end.channel.name), end.side): end for end in ends}.items():
                name = traffic_name(channel[0], end.side in WRITING_SIDES)
                received += counters[node.name].get(name, 0.0) * item_bytes(end)[1]
        return received

    @property
    def lag(self) -> LagSummary:
        """Of all rows that were learned from."""
        return LagSummary.merge([node.lag for node in self._backend.snapshots()])

    def total(self, name: str) -> float:
        """A counter or gauge added up over all nodes."""
        return sum(node.counters.get(name, 0.0) for node in self._backend.snapshots())

    def advance_to(self, name: str, amount: float) -> None:
        """Run until the counter `name` has reached `amount`."""
        while self.total(name) < amount:
            self._backend.advance(0.0)

    def evaluate(self) -> float:
        """Mean return of fresh episodes with the present weights, without exploration."""
        boards = [self._backend.parameters(board) for board in self._plan.topology.weights]
        version = boards[0].version
        evaluator = Evaluator(
            self._plan.problem.environment,
            self._plan.topology.network,
            seed=self._plan.options.seed * 1000 + version,
        )
        try:
            vector = np.concatenate([board.vector for board in boards])
            return float(np.mean(evaluator.returns(vector)))
        finally:
            evaluator.close()


def curve(
    run: SerialRun, points: Sequence[float], over: str = "updates", gauges: Sequence[str] = ()
) -> list[dict[str, float]]:
    """Evaluation whenever the counter `over` has reached a point, and gauges and lag until then."""
    found = []
    with run:
        for point in points:
            run.advance_to(over, point)
            levels = {name: run.total(name) for name in ("updates", "env_steps", *gauges)}
            levels |= {"lag_mean": run.lag.mean, "lag_max": float(run.lag.max)}
            found.append({**levels, "evaluation_return": run.evaluate()})
    return found
