# SPDX-License-Identifier: Apache-2.0
"""PPO (Schulman et al., 2017).

    actor x N --trajectories--> queue --one of each--> learner: several passes over each batch
       ^                                                  |
       +------ weights: no trajectory starts without -----+

New since A2C: a batch is learned from several times, in shuffled minibatches, and a clip keeps the
policy near the one that acted.
One datum: actor -> queue -> learner.
Lag: 0 when a batch arrives, as in A2C; the later passes step away from the weights that acted.
Deviations: the learning rate follows the policy's change towards `target_kl` unless that is 0. The
value's error is taken in units of the targets' deviation, where the paper scales nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.ppo import PPO, ClippedOptions, PPOOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.policies import LocalPolicy
from veldt.roles.selection import KEPT, DrawOptions, SampleActions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults are tuned for vectors; the preset `paper` has the constants published for Atari."""

    loss: ClippedOptions = ClippedOptions(
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
    barrier: Literal["trajectory", "step"] = "trajectory"
    """trajectory: actors wait for each other before each update. step: one policy for all
    environments, which wait for each other at every step."""


def build(config: Config, problem: Problem) -> Topology:
    if config.barrier == "step":
        problem = problem.in_one_actor()
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, KEPT)
    selection = SampleActions(keep_value=True, pink_share=config.exploration.noise_share)

    topology = Topology(network)
    weights = topology.board("weights", network)
    pacing = Pacing(weights.source())
    trajectories = topology.queue("trajectories", layout, pacing.slots(problem.num_actors))
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source(), selection),
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
            PPO(config.loss, without_lag=True),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    if config.barrier == "step":
        topology.colocate(*topology.of("actor", "learner"))  # they never work at the same time
    return topology


ARCHITECTURE = Architecture(
    "ppo",
    Config,
    build,
    presets("ppo", Config()),
    default_actors=one_actor_per_core,
    actors_wait=True,
)
