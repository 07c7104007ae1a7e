# SPDX-License-Identifier: Apache-2.0
"""Options and rules of population-based training: who is replaced, how values are perturbed.

Jaderberg et al. 2017, with the rules that Petrenko et al. 2020 (Sample Factory) and Espeholt et al.
2018 (IMPALA, appendix F) used. Objectives are mean returns of the true task, larger is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, Count, CountOrNone, NotNegative, Options, Positive

_RESET_CHANCE = 0.01  # of a perturbed value, to its first value
_TINY = 1e-5  # keeps a best objective of 0 from dividing by 0


@dataclass(frozen=True)
class PopulationOptions(Options):
    """Population-based training (PBT) of several policies, each with its own learner."""

    num_policies: Annotated[int, Bounds(1, 128)] = 1
    """Policies that are trained at the same time."""
    pbt_rule: Literal["sample_factory", "impala"] = "sample_factory"
    """Paper whose rule decides which policy is replaced and how values are perturbed."""
    pbt_period_env_steps: CountOrNone = 10_000
    """Env steps of a policy between two comparisons; the first comes after four periods."""
    pbt_episodes: Count = 100
    """Episodes in a policy's mean return; it is not compared with fewer."""
    pbt_gap: NotNegative | None = None
    """Difference that a replacement needs: a share of the better return (sample_factory), or a
    return (impala); none: the rule's own (0.1; impala 0.05)."""
    pbt_learning_rates: tuple[Positive, ...] = ()
    """First learning rate of each policy; empty: learning_rate, perturbed except for policy 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = self.pbt_learning_rates
        if rates and len(rates) != self.num_policies:
            raise ConfigurationError(
                f"pbt_learning_rates has {len(rates)} entries for {self.num_policies} policies;"
                " give a positive one for each, or none"
            )

    def rule(self) -> SampleFactoryRule | ImpalaRule:
        gap = self.pbt_gap
        if self.pbt_rule == "impala":
            return ImpalaRule() if gap is None else ImpalaRule(absolute_gap=gap)
        return SampleFactoryRule() if gap is None else SampleFactoryRule(relative_gap=gap)


class Members(NamedTuple):
    """Scores and hyperparameters of all members."""

    objectives: np.ndarray
    """[P]."""
    hyperparameters: np.ndarray
    """[P, H]."""
    defaults: np.ndarray
    """[H], the first values."""


class Decision(NamedTuple):
    """Weights and hyperparameters with which one member continues."""

    parent: int
    """The member whose weights it takes; its own number: it keeps its own."""
    hyperparameters: np.ndarray
    reason: str


@dataclass(frozen=True)
class SampleFactoryRule:
    """Sample Factory's: the best stay unchanged; one of the worst copies one of the best.

    It copies weights and hyperparameters, if that member is clearly better. All but the best
    perturb their values; member 0 never does, as a reference.
    """

    mutation_rate: float = 0.15
    perturb_least: float = 1.1
    perturb_most: float = 1.5
    replace_fraction: float = 0.3
    relative_gap: float = 0.1
    absolute_gap: float = 1e-6

    def decide(self, member: int, members: Members, random: np.random.Generator) -> Decision | None:
        """Compare a member whose period is over; None: it stays unchanged."""
        objectives, hyperparameters, defaults = members
        count = math.ceil(self.replace_fraction * len(objectives))
        # Ties are broken by the larger number, so that every run ranks alike.
        ranked = sorted(range(len(objectives)), key=lambda other: (-objectives[other], -other))
        best, worst = ranked[:count], ranked[-count:]
        if member in best:
            return None
        parent, reason = member, "neither among the best nor the worst"
        if member in worst:
            candidate = best[int(random.integers(len(best)))]
            gap = float(objectives[candidate] - objectives[member])
            relative = abs(gap / (float(objectives[candidate]) + _TINY))
            reason = f"among the worst, but policy {candidate} is not clearly better"
            if abs(gap) > self.absolute_gap and relative > self.relative_gap:
                parent = candidate
                reason = f"policy {candidate} is better by {gap:.4g} ({relative:.0%})"
        values = hyperparameters[parent].copy()
        if member > 0:
            values = self.perturbed(values, defaults, random)
        return Decision(parent, values, reason)

    def perturbed(
        self, values: np.ndarray, defaults: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Each value, with the mutation rate as its chance, times or divided by a factor."""
        changed = values.copy()
        for index, value in enumerate(values):
            if random.random() > self.mutation_rate:
                continue
            if value != defaults[index] and random.random() < _RESET_CHANCE:
                changed[index] = defaults[index]
                continue
            factor = random.uniform(self.perturb_least, self.perturb_most)
            changed[index] = value / factor if random.random() < 0.5 else value * factor
        return changed


@dataclass(frozen=True)
class ImpalaRule:
    """IMPALA's: a member copies a random other one that is better by more than `absolute_gap`.

    Values are perturbed also without a copy.
    """

    mutation_rate: float = 0.33
    factor: float = 1.2
    absolute_gap: float = 0.05

    def decide(self, member: int, members: Members, random: np.random.Generator) -> Decision:
        """As in SampleFactoryRule, but no member stays unchanged."""
        objectives, hyperparameters, defaults = members
        candidate = int(random.integers(len(objectives) - 1))
        candidate += candidate >= member
        gap = float(objectives[candidate] - objectives[member])
        if gap > self.absolute_gap:
            parent, reason = candidate, f"policy {candidate} is better by {gap:.4g}"
        else:
            parent, reason = member, f"policy {candidate} is not better by {self.absolute_gap:g}"
        values = self.perturbed(hyperparameters[parent], defaults, random)
        return Decision(parent, values, reason)

    def perturbed(
        self, values: np.ndarray, defaults: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Each value, with the mutation rate as its chance, times or divided by the factor."""
        mutates = random.random(len(values)) < self.mutation_rate
        factors = np.where(random.random(len(values)) < 0.5, 1.0 / self.factor, self.factor)
        return np.where(mutates, values * factors, values)
