# SPDX-License-Identifier: Apache-2.0
"""Ape-X: what the actors' priorities are worth, and what more actors are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Claim, Criterion, Row, mean_over_time, select, settings
from .figures import curves
from .learning import SHARE
from .training import SerialRun, curve, serial_options

_AGE, _PRIORITY = "replay.mean_age_inserts", "replay.sampled_priority"
_RETURN = "evaluation_return"


@dataclass(frozen=True)
class _ApexClaim(Claim):
    """Ape-X on the serial backend, evaluated at equal numbers of updates."""

    is_timed = False

    envs_per_actor: int = 4
    """Environments of each actor, and environment steps that it adds for each update."""
    batch_size: int = 64
    """Transitions per update."""
    updates: int = 600
    """Updates of each run."""
    points: int = 10
    """Evaluations on the way."""

    def _curve(self, seed: int, actors: int, own: dict[str, Any], **options: Any) -> Row:
        width = self.envs_per_actor
        shared = serial_options(seed, self.env, actors, width, **options)
        given = {"env_steps_per_update": float(actors * width), "batch_size": self.batch_size}
        step = max(1, self.updates // self.points)
        points = range(step, self.updates + 1, step)
        run = SerialRun("apex", shared, {**given, **own})
        return {"points": curve(run, points, gauges=(_AGE, _PRIORITY))}


@dataclass(frozen=True)
class ActorPriorities(_ApexClaim):
    """Ape-X with and without first priorities computed by the actors."""

    name = "actor_priorities"
    statement = "Priorities computed by the actors keep the learner from the newest data alone."
    paper = "Ape-X (Horgan et al., 2018)"
    rule = (
        "With priorities from the actors, what is sampled is on average at least twice as old as"
        " when new data enters at the largest priority: the interval of the ratio over seeds lies"
        " above 2 (serial backend, equal numbers of updates). The score is reported."
    )
    caption = (
        "Left: score of fresh episodes over learner updates. Right: mean age of what is sampled."
        " Where new data enters at the largest priority, a learner with fast actors trains on"
        " little else."
    )
    factors = settings(actor_priorities=(True, False))
    quick_settings = settings(envs_per_actor=16, updates=60, points=2, seeds=2)
    full_settings = settings(updates=5_000, points=10, seeds=10)

    envs_per_actor: int = 64
    """Environments of the one actor, and environment steps for each update."""
    updates: int = 1_000
    points: int = 5
    seeds: int = 6

    def measure(self, case: Row) -> Row:
        return self._curve(
            case["seed"], 1, {"replay_options": {"actor_priorities": case["actor_priorities"]}}
        )

    def judge(self, rows: list[Row]) -> list[Criterion]:
        with_, without = (mean_over_time(rows, _AGE, actor_priorities=by) for by in (True, False))
        return [Criterion.over_seeds("age of samples with over without them", with_ / without, 2.0)]

    def notes(self, rows: list[Row]) -> list[str]:
        with_, without = (
            mean_over_time(rows, _RETURN, actor_priorities=by) for by in (True, False)
        )
        gain = Criterion.over_seeds("", with_ - without, 0.0)
        return [
            f"The score with them minus that without is {gain.value:.0f}, {gain.low:.0f} to"
            f" {gain.high:.0f}: that they raise it {gain.outcome}."
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        groups = {
            "priorities by the actors": select(rows, actor_priorities=True),
            "largest priority": select(rows, actor_priorities=False),
        }
        curves(left, groups, "updates", _RETURN, ("updates", f"return on {self.env}"))
        curves(right, groups, "updates", _AGE, ("updates", "mean age of samples, in inserts"))


@dataclass(frozen=True)
class _SeaClaim(_ApexClaim):
    """Ape-X on Deep Sea, where nothing is learned before the treasure has been found."""

    env: str = "benchmarks.environments:DeepSea"
    """Environment."""
    depth: int = 8
    """Its rows; chance finds the treasure in one of 2^depth episodes."""
    score_range: float = 1.0
    """From the worst score to the best one."""
    epsilon_base: float = 0.4
    """The largest epsilon of the ladder, as in the paper."""
    seeds: int = 8

    def _explore(self, seed: int, actors: int, **own: Any) -> Row:
        given = {
            "exploration_options": {"epsilon_base": self.epsilon_base},
            "min_replay_transitions": 200,
            # Else what sets the pace is how often the target is renewed, not what is found.
            "target_period_updates": 25,
            **own,
        }
        return self._curve(seed, actors, given, env_options={"size": self.depth})

    def _gain(self, what: str, better: np.ndarray, than: np.ndarray) -> Criterion:
        return Criterion.over_seeds(what, better - than, 0.0, matters=SHARE * self.score_range)


@dataclass(frozen=True)
class MoreActors(_SeaClaim):
    """Ape-X with few and with many actors at a fixed learner rate."""

    name = "more_actors"
    statement = "More actors give a better score at a fixed learner rate."
    paper = "Ape-X (Horgan et al., 2018)"
    rule = (
        "With the largest number of actors the score, averaged over evaluations at equal numbers of"
        " updates, is higher than with the smallest: the interval of the difference over seeds lies"
        " above 0. It does not hold where it lies below a tenth of the range of scores, the least"
        " that matters. Every actor adds the same number of environment steps for each update"
        " (serial backend, a task that asks for exploration)."
    )
    caption = "Score of fresh episodes over learner updates, by number of actors."
    factors = settings(actors="actors")
    quick_settings = settings(actors=(1, 2), updates=60, points=2, seeds=2)
    full_settings = settings(actors=(1, 2, 4, 8, 16), updates=1_200, seeds=24)

    actors: tuple[int, ...] = (1, 16)
    """Numbers of actors, comma separated."""
    seeds: int = 12
    first_seed: int = 21  # none of those with which the numbers of actors were chosen

    def measure(self, case: Row) -> Row:
        return self._explore(case["seed"], case["actors"])

    def judge(self, rows: list[Row]) -> list[Criterion]:
        few, many = self.actors[0], self.actors[-1]
        scores = {n: mean_over_time(rows, _RETURN, actors=n) for n in (few, many)}
        return [self._gain(f"score with {many} actors minus {few}", scores[many], scores[few])]

    def draw(self, rows: list[Row], figure: Any) -> None:
        groups = {
            f"{n} actor{'s' * (n > 1)}, {n * self.envs_per_actor} env steps per update": select(
                rows, actors=n
            )
            for n in self.actors
        }
        names = ("updates", f"return on {self.env}")
        curves(figure.subplots(), groups, "updates", _RETURN, names)


_LADDER, _ONE_EPSILON, _UNIFORM = "ladder, prioritised", "one epsilon", "uniform replay"
_WITHOUT: dict[str, dict[str, dict[str, float]]] = {
    _LADDER: {},
    _ONE_EPSILON: {"exploration_options": {"epsilon_base": 0.1, "epsilon_alpha": 0.0}},
    _UNIFORM: {"replay_options": {"priority_exponent": 0.0}},
}


@dataclass(frozen=True)
class LadderAndPriorities(_SeaClaim):
    """Ape-X, and Ape-X without either of the two parts that its paper takes away."""

    name = "ladder_and_priorities"
    statement = "Ape-X's ladder of epsilons and its prioritised replay each raise the score."
    paper = "Ape-X (Horgan et al., 2018), sections 4 and 5"
    rule = (
        "The score averaged over evaluations at equal numbers of updates is higher with both than"
        " with one epsilon of 0.1 for all environments, and higher than with uniform sampling: the"
        " intervals of both differences over seeds lie above 0. It does not hold where one lies"
        " below a tenth of the range of scores, the least that matters (serial backend)."
    )
    caption = "Score of fresh episodes over learner updates: both parts, and each left out."
    factors = settings(arm=tuple(_WITHOUT))
    quick_settings = settings(updates=60, points=2, seeds=2)
    full_settings = settings(updates=1_200, seeds=24)

    actors: int = 4
    """Actors."""
    depth: int = 6
    seeds: int = 20
    first_seed: int = 201  # none of those with which depth and number of seeds were chosen

    def measure(self, case: Row) -> Row:
        return self._explore(case["seed"], self.actors, **_WITHOUT[case["arm"]])

    def judge(self, rows: list[Row]) -> list[Criterion]:
        both = mean_over_time(rows, _RETURN, arm=_LADDER)
        return [
            self._gain(f"score minus {arm}'s", both, mean_over_time(rows, _RETURN, arm=arm))
            for arm in (_ONE_EPSILON, _UNIFORM)
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        groups = {arm: select(rows, arm=arm) for arm in _WITHOUT}
        names = ("updates", f"return on {self.env}")
        curves(figure.subplots(), groups, "updates", _RETURN, names)
