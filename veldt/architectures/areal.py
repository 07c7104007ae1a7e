# SPDX-License-Identifier: Apache-2.0
"""AReaL (Fu et al., 2025), without the language model.

    actor x N --trajectories--> queue --one batch of all actors--> learner: several passes
       ^                                                              |
       +------ weights, up to eta updates old; new ones at any row ---+

New since Sebulba: a bound instead of a pace. Actors may collect `eta` batches ahead, and take new
weights between any two rows, so a trajectory has several versions. PPO's clip is decoupled: it
keeps near the weights just before the batch, and a weight per row corrects for those that acted.
One datum: actor -> queue -> learner.
Lag: at most `eta` updates; 0 is PPO, with the same bits on the serial backend.
Deviations: value targets are V-trace's, where AReaL has no value function. A batch contains a fixed
share of each actor, where AReaL takes the trajectories that finish first.
"""

from __future__ import annotations

from dataclasses import dataclass

from veldt.architectures import Architecture
from veldt.losses.ppo import PPO, ClippedOptions, PPOOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.pacing import Eta, Pacing
from veldt.roles.policies import LocalPolicy
from veldt.roles.selection import KEPT, DrawOptions, SampleActions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """The presets learn as PPO's do."""

    loss: ClippedOptions = ClippedOptions(
        correction="decoupled",
        trace_lambda=0.95,
        normalize_observations=True,
        ppo=PPOOptions(epochs=4, minibatches=8, normalize_values=True),
    )
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=1.0)
    exploration: DrawOptions = DrawOptions()
    trajectory_steps: Count = 64
    """Environment steps per trajectory, and so per batch."""
    num_envs: CountOrNone = 32
    """Environments of all actors together; 0: by the kind of environment and the cores."""
    eta: Eta = 4
    """Batches that actors may be ahead of the learner, and so the largest lag; 0 is PPO."""
    refresh_env_steps: CountOrNone = 1
    """Steps of each environment between two refreshes of an actor's weights; 0: a trajectory has
    one version, always the oldest that eta allows."""


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, KEPT)
    selection = SampleActions(keep_value=True, pink_share=config.exploration.noise_share)

    topology = Topology(network)
    weights = topology.board("weights", network, config.eta + 1)
    pacing = Pacing(weights.source(), config.eta)
    trajectories = topology.queue("trajectories", layout, pacing.slots(problem.num_actors))
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source(), selection, config.refresh_env_steps),
                trajectories.sink,
                pacing=pacing,
                gamma=config.loss.gamma,
            ),
        )
    topology.add(
        "learner",
        Learner(
            network,
            pacing.batches(trajectories, problem),
            PPO(config.loss, without_lag=config.eta == 0),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture("areal", Config, build, presets("ppo", Config()))
