# SPDX-License-Identifier: Apache-2.0
"""Options of architectures that can train several policies as a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, Count, CountOrNone, NotNegative, Options, Positive
from veldt.population.rules import ImpalaRule, SampleFactoryRule


@dataclass(frozen=True)
class PopulationOptions(Options):
    """Population-based training (PBT) of several policies, each with its own learner."""

    num_policies: Annotated[int, Bounds(1, 128)] = 1
    """Policies that are trained side by side."""
    pbt_rule: Literal["sample_factory", "impala"] = "sample_factory"
    """Paper whose rule decides which policy is replaced and how values are perturbed."""
    pbt_period_env_steps: CountOrNone = 10_000
    """Env steps of a policy between two judgements of it; the first comes after four periods."""
    pbt_episodes: Count = 100
    """Episodes over which a policy's mean return is taken; none is judged with fewer."""
    pbt_gap: NotNegative | None = None
    """Difference that a replacement needs: a share of the better return (sample_factory), or a
    return (impala); none: the rule's own (0.1; impala 0.05)."""
    pbt_learning_rates: tuple[Positive, ...] = ()
    """First learning rate of each policy; empty: learning_rate, perturbed but for policy 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = self.pbt_learning_rates
        if rates and len(rates) != self.num_policies:
            raise ConfigurationError(
                f"pbt_learning_rates has {len(rates)} entries for {self.num_policies} policies;"
                " give a positive one for each, or none"
            )

    def rule(self) -> SampleFactoryRule | ImpalaRule:
        if self.pbt_rule == "impala":
            return ImpalaRule() if self.pbt_gap is None else ImpalaRule(absolute_gap=self.pbt_gap)
        if self.pbt_gap is None:
            return SampleFactoryRule()
        return SampleFactoryRule(relative_gap=self.pbt_gap)
