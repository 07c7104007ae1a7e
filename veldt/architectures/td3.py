# SPDX-License-Identifier: Apache-2.0
"""TD3 (Fujimoto et al., 2018), with the actors and the replay of Ape-X.

    actor x N --trajectories [+ values]--> replay --batches--> learner
       ^                                     ^                    |  |
       |                                     +---- priorities ----+  |
       +-------------------------- weights --------------------------+

New since Ape-X DPG: the smaller of two critics, noise on the target's actions, and an actor that is
updated less often than the critics.
One datum: actor -> queue -> replay -> learner.
Lag: none that matters to an off-policy method; the age of what is replayed is reported.
Deviations: the noise on actions is pink (`noise_exponent`), which finds far goals. The replay may
rank transitions as Ape-X's does (`priority_exponent`); by default every one is as likely. The
target follows one update after the actor, where the paper moves both in the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture
from veldt.losses.td3 import TD3, TD3Options
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Bounds, Count, CountOrNone, NotNegative, Options
from veldt.options.groups import EXPLORATION_OPTIONS
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies import LocalPolicy
from veldt.roles.replay import VALUES, PrioritizedReplayOptions, PrioritizedTable, add_replay
from veldt.roles.selection import GaussianNoise
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small tasks; the preset `paper` has the published constants."""

    loss: TD3Options = TD3Options()
    replay: PrioritizedReplayOptions = PrioritizedReplayOptions(
        replay_transitions=200_000,
        min_replay_transitions=500,
        env_steps_per_update=1.0,
        priority_exponent=0.0,
        importance_exponent=0.0,
        trim_period_updates=0,
        prefetch_batches=2,
    )
    noise_sigma: Annotated[NotNegative, EXPLORATION_OPTIONS] = 0.2
    """Deviation of the noise on actions, in units of half their range."""
    noise_exponent: Annotated[float, Bounds(0, 2), EXPLORATION_OPTIONS] = 1.0
    """Color of the noise on actions; 0: white, 1: pink."""
    optimizer: OptimizerOptions = OptimizerOptions(optimizer_epsilon=1e-8, max_grad_norm=0.0)
    trajectory_steps: Count = 1
    """Rows an actor collects before it hands them to the replay."""
    refresh_env_steps: CountOrNone = 1
    """Steps of each environment between two refreshes of an actor's weights."""
    num_envs: CountOrNone = 1
    """Environments of all actors together; 0: by the kind of environment and the cores."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("td3", "box")
    problem.require_no_memory("td3")
    network = problem.network("td3", config.loss)
    environments = problem.environments()
    explore = GaussianNoise(config.noise_exponent, sigma=config.noise_sigma)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, VALUES)
    table = PrioritizedTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source(), explore, config.refresh_env_steps),
                trajectories.sink,
            ),
        )
    topology.add(
        "learner",
        Learner(
            network,
            add_replay(topology, trajectories, table),
            TD3(config.loss),
            # Only what the actor is stepped by counts for its moments.
            LocalOptimizer(config.optimizer, {"actor_part": config.optimizer}),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture("td3", Config, build, presets("td3", Config()))
