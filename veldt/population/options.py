# SPDX-License-Identifier: Apache-2.0
"""Options of architectures that can train several policies as a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from veldt.errors import ConfigurationError
from veldt.options.checked import (
    Bounds,
    Count,
    CountOrNone,
    Fraction,
    NotNegative,
    Options,
    Positive,
)
from veldt.population.rules import ImpalaRule, SampleFactoryRule


@dataclass(frozen=True)
class PopulationOptions(Options):
    """Several policies, each with a learner of its own, trained as a population (PBT)."""

    num_policies: Annotated[int, Bounds(1, 128)] = 1
    """Policies that are trained side by side."""
    pbt_rule: Literal["sample_factory", "impala"] = "sample_factory"
    """Who takes whose weights and how values are perturbed: the rule of this paper."""
    pbt_start_env_steps: CountOrNone = 20_000
    """Env steps of a policy before it is replaced or mutated for the first time."""
    pbt_period_env_steps: CountOrNone = 10_000
    """Env steps of a policy between two judgements of it."""
    pbt_episodes: Count = 100
    """A policy is judged by its mean return over so many episodes, once it has played them."""
    pbt_mutation_rate: Fraction | None = None
    """Chance of each value to be perturbed; none: the rule's own (0.15; impala 0.33)."""
    pbt_replace_fraction: Annotated[float, Bounds(0, 0.5, above=True)] = 0.3
    """Share of the policies that counts as the best, and as the worst (sample_factory)."""
    pbt_relative_gap: NotNegative = 0.1
    """Share of the better return that a replacement needs as a difference (sample_factory)."""
    pbt_absolute_gap: NotNegative | None = None
    """Difference in return that a replacement needs; none: the rule's own (1e-6; impala 0.05)."""
    pbt_learning_rates: tuple[Positive, ...] = ()
    """First learning rate of each policy; empty: learning_rate, perturbed but for policy 0."""
    pbt_reward_components: tuple[str, ...] = ()
    """Names in info["reward_components"] whose weighted sum is learned from, with a weight of its
    own for each policy and name; empty: one weight on the reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = self.pbt_learning_rates
        if rates and len(rates) != self.num_policies:
            raise ConfigurationError(
                f"pbt_learning_rates has {len(rates)} entries for {self.num_policies} policies;"
                " give a positive one for each, or none"
            )

    def rule(self) -> SampleFactoryRule | ImpalaRule:
        given = {"mutation_rate": self.pbt_mutation_rate, "absolute_gap": self.pbt_absolute_gap}
        own: dict[str, float] = {k: value for k, value in given.items() if value is not None}
        if self.pbt_rule == "impala":
            return ImpalaRule(**own)
        own |= {"replace_fraction": self.pbt_replace_fraction}
        return SampleFactoryRule(relative_gap=self.pbt_relative_gap, **own)


@dataclass(frozen=True)
class MixedPopulationOptions(PopulationOptions):
    """Policies that play side by side in the environments of one actor."""

    policy_assignment: Literal["episode", "environment"] = "episode"
    """A policy plays one episode and is drawn anew, or always in the same environments."""
