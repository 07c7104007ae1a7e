# SPDX-License-Identifier: Apache-2.0
"""Claims that counters and weights decide exactly, whatever the clock says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from veldt.compare.traffic import actor_traffic

from .claim import Claim, Criterion, Row, settings, values
from .figures import bars, lines
from .training import SerialRun, serial_options, train


@dataclass(frozen=True)
class _TrafficClaim(Claim):
    """Bytes counted in serial runs."""

    is_timed = False

    env_steps: int = 8_000
    """Steps that are counted."""
    seeds: int = 2


@dataclass(frozen=True)
class WeightTraffic(_TrafficClaim):
    """What actors take per environment step while the network grows."""

    name = "weight_traffic"
    statement = "IMPALA's weight traffic grows with the model; SEED RL's actors take no weights."
    paper = "SEED RL (Espeholt et al., 2020), section 1"
    rule = (
        "From the narrowest to the widest network the bytes that an actor takes per environment"
        " step grow more than tenfold with IMPALA and hardly at all with SEED RL: the ratios are"
        " above 10 and below 1.1 (exact, from counters; serial backend)."
    )
    caption = "Bytes that actors take per environment step over the width of both hidden layers."
    factors = settings(system=("impala", "seed_rl"), width="widths")
    quick_settings = settings(widths=(16, 64), env_steps=600, seeds=1)

    widths: tuple[int, ...] = (16, 64, 256, 1024)
    """Widths of both hidden layers, comma separated."""
    env_steps: int = 4_000
    envs_per_actor: int = 8
    """Environments of an actor."""

    def measure(self, case: Row) -> Row:
        hidden_sizes = (case["width"], case["width"])
        options = serial_options(
            case["seed"],
            self.env,
            2,
            self.envs_per_actor,
            network_options={"hidden_sizes": hidden_sizes},
        )
        with SerialRun(case["system"], options, {}) as run:
            run.advance_to("env_steps", self.env_steps)
            up, down = actor_traffic(run.topology, run.counters())
        return {"down": down, "up": up}

    def _growth(self, rows: list[Row], system: str) -> float:
        ends = [
            values(rows, "down", system=system, width=width).mean()
            for width in (self.widths[-1], self.widths[0])
        ]
        return float(ends[0] / ends[1])

    def judge(self, rows: list[Row]) -> list[Criterion]:
        return [
            Criterion.exactly("growth of IMPALA's bytes", self._growth(rows, "impala"), 10.0),
            Criterion.exactly(
                "growth of SEED RL's", self._growth(rows, "seed_rl"), 1.1, above=False
            ),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        groups = {
            name: np.array([values(rows, "down", system=name, width=w) for w in self.widths])
            for name in ("impala", "seed_rl")
        }
        lines(axis, self.widths, groups, ("hidden units per layer", "bytes taken per env step"))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")


@dataclass(frozen=True)
class ReplayTraffic(_TrafficClaim):
    """Gorila's two homes of the replay, and what leaves a process with each."""

    name = "gorila_replay_traffic"
    statement = "Gorila's global replay costs communication that bundles do not have."
    paper = "Gorila (Nair et al., 2015), section 4"
    rule = (
        "With a global replay, experience and batches pass between processes; with bundles only"
        " gradients and weights do. The ratio of the bytes that pass per environment step is above"
        " 1.2 (exact, from counters; serial backend)."
    )
    caption = "Bytes between processes per environment step."
    factors = settings(replay=("bundled", "global"))
    quick_settings = settings(env_steps=2_000, seeds=1)

    actors: int = 4
    """Actors; bundles, where there are such."""

    def measure(self, case: Row) -> Row:
        options = serial_options(case["seed"], self.env, self.actors, envs=8)
        own = {"replay": case["replay"], "num_learners": self.actors}
        with SerialRun("gorila", options, own) as run:
            run.advance_to("env_steps", self.env_steps)
            return {"bytes": run.bytes_between_processes() / run.total("env_steps")}

    def judge(self, rows: list[Row]) -> list[Criterion]:
        ratio = values(rows, "bytes", replay="global") / values(rows, "bytes", replay="bundled")
        what = "bytes of the global replay over those of bundles"
        return [Criterion.exactly(what, float(ratio.min()), 1.2)]

    def draw(self, rows: list[Row], figure: Any) -> None:
        groups = {kind: values(rows, "bytes", replay=kind) for kind in ("bundled", "global")}
        bars(figure.subplots(), groups, "bytes between processes per env step")


@dataclass(frozen=True)
class SameAgent(Claim):
    """One agent on two backends, down to the last bit of its weights."""

    name = "same_agent"
    statement = "The same agent, alone in one thread and distributed over processes, is the same."
    paper = "Acme (Hoffman et al., 2020)"
    rule = (
        "A2C with several actors ends with weights that are equal in every bit on the serial and"
        " the process backend, for every seed: the share of seeds with different ones is 0."
    )
    caption = "Share of seeds whose final weights differ between the backends."
    factors = settings(backend=("serial", "process"))
    quick_settings = settings(env_steps=1_000, seeds=1)

    env_steps: int = 8_000
    actors: int = 4
    seeds: int = 3

    def measure(self, case: Row) -> Row:
        sizes = {"num_actors": self.actors, "envs_per_actor": 2, "total_env_steps": self.env_steps}
        shared = {"env": self.env, "seed": case["seed"], "backend": case["backend"]}
        run = train("a2c", **shared, **sizes, preset="control")
        return {"digest": run.row["parameters_sha256"]}

    def _different(self, rows: list[Row]) -> np.ndarray:
        by_seed: dict[int, set[str]] = {}
        for row in rows:
            by_seed.setdefault(row["seed"], set()).add(row["digest"])
        return np.array([float(len(found) > 1) for found in by_seed.values()])

    def judge(self, rows: list[Row]) -> list[Criterion]:
        share = float(self._different(rows).mean())
        return [
            Criterion.exactly("share of seeds with different weights", share, 1e-9, above=False)
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        bars(figure.subplots(), {"serial, process": self._different(rows)}, "share that differs")
