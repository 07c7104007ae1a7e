# SPDX-License-Identifier: Apache-2.0
"""Claims about who waits for whom, on environments that sleep: they cost no core, so that a small
machine shows what many would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..environments import SLEEPING
from .claim import Claim, Criterion, Row, settings, values
from .figures import bars, bound
from .speed import SpeedClaim
from .training import train

_BARRIER, _FREE = "a2c", ("a3c", "impala")


@dataclass(frozen=True)
class StragglersHurtBarriers(SpeedClaim):
    """Systems with and without a barrier when a few steps take long."""

    name = "stragglers"
    statement = "A2C waits for its slowest environment; A3C and IMPALA do not."
    paper = "IMPALA (Espeholt et al., 2018), section 1; A2C (after Mnih et al., 2016)"
    rule = (
        "Each system's speed with stragglers over its speed without: A2C keeps a smaller share than"
        " A3C and than IMPALA by more than 0.1; the intervals of the differences over seeds lie"
        " above that (process backend, equal actors, environments and steps per trajectory)."
    )
    caption = (
        "Left: share of its speed that a system keeps when some steps take long. Right: share of"
        " the time in which its actors wait, with stragglers."
    )
    factors = settings(system=(_BARRIER, *_FREE), straggles=(False, True))
    quick_settings = settings(seconds=4.0, actors=2, seeds=1)
    full_settings = settings(seconds=10.0, seeds=8)

    actors: int = 8
    """Actors, or workers."""
    step_ms: float = 10.0
    """What every step sleeps."""
    probability: float = 0.01
    """How often a step takes longer."""
    straggle_ms: float = 300.0
    """By how much."""

    def measure(self, case: Row) -> Row:
        odds = self.probability if case["straggles"] else 0.0
        slow = {
            "step_ms": self.step_ms,
            "probability": odds,
            "straggle_ms": self.straggle_ms,
        }
        done = self.run(
            case["system"],
            case["seed"],
            self.actors,
            envs=1,
            env=SLEEPING,
            env_options=slow,
            preset="control",  # the same trajectories and one pass over them, for all three
        )
        shares = done.result.stage_shares.get("actor", {})
        return {**done.row, "waits": shares.get("wait")}

    def _kept(self, rows: list[Row], system: str) -> np.ndarray:
        rates = [values(rows, "env_steps_per_second", system=system, straggles=b) for b in (1, 0)]
        return rates[0] / rates[1]

    def judge(self, rows: list[Row]) -> list[Criterion]:
        own = self._kept(rows, _BARRIER)
        return [
            Criterion.over_seeds(
                f"share kept by {name} minus A2C's", self._kept(rows, name) - own, 0.1
            )
            for name in _FREE
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        names = (_BARRIER, *_FREE)
        bars(left, {name: self._kept(rows, name) for name in names}, "share of the speed kept")
        bound(left, float(np.mean(self._kept(rows, _BARRIER))) + 0.1, "A2C's and 0.1")
        waits = {name: values(rows, "waits", system=name, straggles=True) for name in names}
        bars(right, waits, "share of the time that actors wait")


@dataclass(frozen=True)
class ManyBundles(Claim):
    """DQN against Gorila's bundles when stepping is what takes time."""

    name = "gorila_wall_time"
    statement = "On slow environments Gorila's many actors reach a score sooner than DQN."
    paper = "Gorila (Nair et al., 2015)"
    rule = (
        "DQN's seconds to the confirmed score over Gorila's lie above 1: the interval of the ratio"
        " over seeds. It does not hold where it lies below 1.2, the least that matters (process"
        " backend, sleeping environments, learning begins after as many steps in all; a run that"
        " does not reach the score counts with its whole budget)."
    )
    caption = "Seconds to the confirmed score, start included."
    factors = settings(system=("dqn", "gorila"))
    quick_settings = settings(max_seconds=4.0, bundles=2, seeds=1)
    full_settings = settings(base="CartPole-v1", target_return=195.0, max_seconds=300.0, seeds=8)

    step_ms: float = 40.0
    """How long a step takes."""
    base: str = "veldt/Stairs-v0"
    """Environment: slow to step and easy to learn, so that time goes where the claim looks."""
    bundles: int = 8
    """Gorila's."""
    envs_per_actor: int = 4
    """Environments of each actor."""
    epsilon: float = 0.1
    """Of all actors, from the beginning: what is learned in seconds needs no long annealing."""
    warm_up: int = 1_000
    """Transitions of all replays together before learning begins."""
    target_return: float = 0.9
    """The score."""
    max_seconds: float = 40.0
    """Budget of a run."""
    seeds: int = 3

    def measure(self, case: Row) -> Row:
        actors = 1 if case["system"] == "dqn" else self.bundles
        done = train(
            case["system"],
            env=SLEEPING,
            env_options={"base": self.base, "step_ms": self.step_ms},
            backend="process",
            seed=case["seed"],
            num_actors=actors,
            envs_per_actor=self.envs_per_actor,
            min_replay_transitions=self.warm_up // actors,
            exploration_options={"epsilon_start": self.epsilon, "epsilon_end": self.epsilon},
            target_return=self.target_return,
            max_seconds=self.max_seconds,
        )
        return {**done.row, "seconds": done.result.seconds_to_target or self.max_seconds}

    def judge(self, rows: list[Row]) -> list[Criterion]:
        alone, many = (values(rows, "seconds", system=name) for name in ("dqn", "gorila"))
        ratio = alone / many
        return [Criterion.over_seeds("DQN's seconds over Gorila's", ratio, 1.0, matters=1.2)]

    def draw(self, rows: list[Row], figure: Any) -> None:
        names = ("dqn", "gorila")
        groups = {name: values(rows, "seconds", system=name) for name in names}
        bars(figure.subplots(), groups, "seconds to the score")
