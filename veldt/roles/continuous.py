# SPDX-License-Identifier: Apache-2.0
"""What a value-based architecture swaps for Box actions: network, exploration, loss, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from veldt.losses import Objective
from veldt.losses.dpg import DPG, DPGOptions
from veldt.losses.q_learning import QLearningOptions
from veldt.losses.sac import SAC
from veldt.losses.td3 import TD3, TwinCriticOptions
from veldt.networks.factory import NetworkFactory
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Options
from veldt.problem import Problem
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.policies.selection import GaussianNoise, Selection, SquashedDraws

Method = tuple[NetworkFactory, Selection, Objective, LocalOptimizer]


@dataclass(frozen=True)
class ContinuousOptions(Options):
    """Deterministic or soft policies beside critics of their actions."""

    dpg: DPGOptions = DPGOptions()
    twins: TwinCriticOptions = TwinCriticOptions()

    def method(
        self,
        algorithm: str,
        problem: Problem,
        loss: QLearningOptions,
        optimizer: OptimizerOptions,
        keep_values: bool,
    ) -> Method:
        """`keep_values`: actors store what first priorities are made of."""
        twins = self.twins
        if algorithm == "dpg":
            own = replace(optimizer, learning_rate=self.dpg.actor_learning_rate)
            return (
                problem.network(algorithm, loss),
                GaussianNoise(self.dpg.noise_sigma),
                DPG(loss, self.dpg),
                LocalOptimizer(optimizer, {"actor_part": own}),
            )
        network = problem.twin_network(algorithm, loss, twins.critic_sizes)
        if algorithm == "sac":
            explore = SquashedDraws(twins.noise_exponent, keep_values)
            return network, explore, SAC(twins), LocalOptimizer(optimizer)
        noise = GaussianNoise(self.dpg.noise_sigma, twins.noise_exponent)
        # The actor is not stepped every time, so it has an optimizer that leaves it alone between.
        return network, noise, TD3(twins), LocalOptimizer(optimizer, {"actor_part": optimizer})
