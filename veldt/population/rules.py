# SPDX-License-Identifier: Apache-2.0
"""Options and rules of population-based training: who is replaced, how values are perturbed.

Jaderberg et al. 2017, with the rules that Petrenko et al. 2020 (Sample Factory) and Espeholt et al.
2018 (IMPALA, appendix F) used. Objectives are mean returns of the true task, larger is better.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, Count, CountOrNone, NotNegative, Options, Positive
from veldt.options.groups import POPULATION_OPTIONS

_RESET_CHANCE = 0.01  # of a perturbed value, to its first value
_LEAST_GAP = 1e-6
_TINY = 1e-5  # keeps a best objective of 0 from dividing by 0


@dataclass(frozen=True)
class PopulationOptions(Options):
    """Population-based training (PBT) of several policies, each with its own learner."""

    num_policies: Annotated[int, Bounds(1, 128), POPULATION_OPTIONS] = 1
    """Policies that are trained at the same time."""
    pbt_rule: Annotated[Literal["sample_factory", "impala"], POPULATION_OPTIONS] = "sample_factory"
    """Paper whose rule decides which policy is replaced and how values are perturbed."""
    pbt_period_env_steps: Annotated[CountOrNone, POPULATION_OPTIONS] = 10_000
    """Env steps of a policy between two comparisons; the first comes after four periods."""
    pbt_episodes: Annotated[Count, POPULATION_OPTIONS] = 100
    """Episodes in a policy's mean return; it is not compared with fewer."""
    pbt_gap: Annotated[NotNegative | None, POPULATION_OPTIONS] = None
    """Difference that a replacement needs: a share of the better return (sample_factory), or a
    return (impala); none: the rule's own (0.1; impala 0.05)."""
    pbt_learning_rates: Annotated[tuple[Positive, ...], POPULATION_OPTIONS] = ()
    """First learning rate of each policy; empty: learning_rate, perturbed except for policy 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = self.pbt_learning_rates
        if rates and len(rates) != self.num_policies:
            raise ConfigurationError(
                f"pbt_learning_rates has {len(rates)} entries for {self.num_policies} policies;"
                " give a positive one for each, or none"
            )

    def rule(self, defaults: np.ndarray, random: np.random.Generator) -> Rule:
        made: type[Rule] = ImpalaRule if self.pbt_rule == "impala" else SampleFactoryRule
        return made(defaults, random, made.gap if self.pbt_gap is None else self.pbt_gap)


class Decision(NamedTuple):
    """Weights and hyperparameters with which one member continues."""

    parent: int
    """The member whose weights it takes; its own number: it keeps its own."""
    hyperparameters: np.ndarray
    reason: str


@dataclass(frozen=True)
class Rule(ABC):
    """Decides what a member continues with when its period is over."""

    defaults: np.ndarray
    """The first hyperparameters [H]."""
    random: np.random.Generator
    gap: float = 0.0

    @abstractmethod
    def decide(
        self, member: int, objectives: np.ndarray, hyperparameters: np.ndarray
    ) -> Decision | None:
        """Compare a member by objectives [P] and hyperparameters [P, H]; None: no change."""

    @abstractmethod
    def perturbed(self, values: np.ndarray) -> np.ndarray:
        """Mutated hyperparameters [H]."""


@dataclass(frozen=True)
class SampleFactoryRule(Rule):
    """One of the worst 30% copies one of the best 30%, if that one is better by the share `gap`.

    All but the best perturb their values; member 0 never does, as a reference.
    """

    gap: float = 0.1

    def decide(
        self, member: int, objectives: np.ndarray, hyperparameters: np.ndarray
    ) -> Decision | None:
        count = math.ceil(0.3 * len(objectives))
        # Ties are broken by the larger number, so that every run ranks alike.
        ranked = sorted(range(len(objectives)), key=lambda other: (-objectives[other], -other))
        best, worst = ranked[:count], ranked[-count:]
        if member in best:
            return None
        parent, reason = member, "neither among the best nor the worst"
        if member in worst:
            candidate = best[int(self.random.integers(len(best)))]
            gap = float(objectives[candidate] - objectives[member])
            relative = abs(gap / (float(objectives[candidate]) + _TINY))
            reason = f"among the worst, but policy {candidate} is not clearly better"
            if abs(gap) > _LEAST_GAP and relative > self.gap:
                parent = candidate
                reason = f"policy {candidate} is better by {gap:.4g} ({relative:.0%})"
        values = hyperparameters[parent].copy()
        if member > 0:
            values = self.perturbed(values)
        return Decision(parent, values, reason)

    def perturbed(self, values: np.ndarray) -> np.ndarray:
        """Each value with chance 0.15 times or divided by 1.1 to 1.5, or rarely its default."""
        changed = values.copy()
        for index, value in enumerate(values):
            if self.random.random() > 0.15:
                continue
            if value != self.defaults[index] and self.random.random() < _RESET_CHANCE:
                changed[index] = self.defaults[index]
                continue
            factor = self.random.uniform(1.1, 1.5)
            changed[index] = value / factor if self.random.random() < 0.5 else value * factor
        return changed


@dataclass(frozen=True)
class ImpalaRule(Rule):
    """A member copies a random other one that is better by more than the return `gap`.

    Values are perturbed also without a copy.
    """

    gap: float = 0.05

    def decide(self, member: int, objectives: np.ndarray, hyperparameters: np.ndarray) -> Decision:
        candidate = int(self.random.integers(len(objectives) - 1))
        candidate += candidate >= member
        gap = float(objectives[candidate] - objectives[member])
        if gap > self.gap:
            parent, reason = candidate, f"policy {candidate} is better by {gap:.4g}"
        else:
            parent, reason = member, f"policy {candidate} is not better by {self.gap:g}"
        return Decision(parent, self.perturbed(hyperparameters[parent]), reason)

    def perturbed(self, values: np.ndarray) -> np.ndarray:
        """Each value with chance 0.33 times or divided by 1.2."""
        mutates = self.random.random(len(values)) < 0.33
        factors = np.where(self.random.random(len(values)) < 0.5, 1.0 / 1.2, 1.2)
        return np.where(mutates, values * factors, values)
