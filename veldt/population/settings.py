# SPDX-License-Identifier: Apache-2.0
"""Options of architectures that can train several policies as a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veldt.algorithms.population_training import ImpalaRule, SampleFactoryRule
from veldt.errors import ConfigurationError
from veldt.settings import OptimizerSettings


@dataclass(frozen=True)
class PopulationSettings(OptimizerSettings):
    """Several policies, each with a learner of its own, trained as a population (PBT)."""

    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    num_policies: int = 1
    """Policies that are trained side by side."""
    pbt_rule: Literal["sample_factory", "impala"] = "sample_factory"
    """Who takes whose weights and how values are perturbed: the rule of this paper."""
    pbt_start_env_steps: int = 20_000
    """Env steps of a policy before it is replaced or mutated for the first time."""
    pbt_period_env_steps: int = 10_000
    """Env steps of a policy between two judgements of it."""
    pbt_episodes: int = 100
    """A policy is judged by its mean return over so many episodes, once it has played them."""
    pbt_mutation_rate: float | None = None
    """Chance of each value to be perturbed; none: the rule's own (0.15; impala 0.33)."""
    pbt_replace_fraction: float = 0.3
    """Share of the policies that counts as the best, and as the worst (sample_factory)."""
    pbt_relative_gap: float = 0.1
    """Share of the better return that a replacement needs as a difference (sample_factory)."""
    pbt_absolute_gap: float | None = None
    """Difference in return that a replacement needs; none: the rule's own (1e-6; impala 0.05)."""
    pbt_learning_rates: tuple[float, ...] = ()
    """First learning rate of each policy; empty: learning_rate, perturbed but for policy 0."""
    pbt_reward_components: tuple[str, ...] = ()
    """Names in info["reward_components"] whose weighted sum is learned from, with a weight of its
    own for each policy and name; empty: one weight on the reward."""

    @property
    def policy_per_episode(self) -> bool:
        """Whether environments change their policy."""
        return False

    def rule(self) -> SampleFactoryRule | ImpalaRule:
        given = {"mutation_rate": self.pbt_mutation_rate, "absolute_gap": self.pbt_absolute_gap}
        own: dict[str, float] = {k: value for k, value in given.items() if value is not None}
        if self.pbt_rule == "impala":
            return ImpalaRule(**own)
        own |= {"replace_fraction": self.pbt_replace_fraction}
        return SampleFactoryRule(relative_gap=self.pbt_relative_gap, **own)

    def check(self) -> None:
        rates = self.pbt_learning_rates
        if self.num_policies < 1:
            raise ConfigurationError("num_policies must be 1 or more")
        if self.pbt_rule not in ("sample_factory", "impala"):
            raise ConfigurationError(f"unknown pbt_rule '{self.pbt_rule}'; sample_factory, impala")
        if rates and (len(rates) != self.num_policies or min(rates) <= 0.0):
            raise ConfigurationError(
                f"pbt_learning_rates has {len(rates)} entries for {self.num_policies} policies;"
                " give a positive one for each, or none"
            )
        if self.pbt_mutation_rate is not None and not 0.0 <= self.pbt_mutation_rate <= 1.0:
            raise ConfigurationError("pbt_mutation_rate must be from 0 to 1")
        if self.pbt_episodes < 1:
            raise ConfigurationError("pbt_episodes must be 1 or more")
        if not 0.0 < self.pbt_replace_fraction <= 0.5:
            raise ConfigurationError("pbt_replace_fraction must be above 0 and at most 0.5")


@dataclass(frozen=True)
class ActorPopulationSettings(PopulationSettings):
    """Policies with actors of their own."""

    pbt_rule: Literal["sample_factory", "impala"] = "impala"
    """Who takes whose weights and how values are perturbed: the rule of this paper."""


@dataclass(frozen=True)
class MixedPopulationSettings(PopulationSettings):
    """Policies that play side by side in the environments of one actor."""

    policy_assignment: Literal["episode", "environment"] = "episode"
    """A policy plays one episode and is drawn anew, or always in the same environments."""

    @property
    def policy_per_episode(self) -> bool:
        return self.policy_assignment == "episode"
