# SPDX-License-Identifier: Apache-2.0
"""Sample Factory (Petrenko et al., 2020).

    actor x N ==rows==> requests --> policy worker x M <-- weights --+
       |    <==actions, in the same rows==                           |
       +------ slot numbers ------> queue --batch--> learner --------+

New since SEED RL: one machine, so nothing is sent. Observations are written once into shared slots;
queues carry slot and row numbers. An actor steps one of its two groups of environments while policy
workers answer for the other (double buffering). The loss is PPO's clip on V-trace targets.
One datum: actor -> slot -> policy worker -> slot -> learner.
Several policies (`num_policies`) each have all of the above, and are trained as a population: the
worst continue from the weights of the best.
Lag: weights may change between two rows; each row knows its version, and rows beyond
`max_policy_lag` are masked out of the loss while the learning rate shrinks with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture
from veldt.losses.ppo import ClippedOptions, PPOOptions, clipped
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Nodes, NotNegative, Options
from veldt.options.groups import SAMPLING_OPTIONS
from veldt.options.presets import presets
from veldt.population.members import with_population
from veldt.population.rules import PopulationOptions
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.inference import BatchedPolicy, BatchRule, SharedMemoryInference, recurrent_memory
from veldt.roles.learner import Learner
from veldt.roles.policies import SharedMemoryPolicy
from veldt.roles.selection import KEPT, DrawOptions, SampleActions
from veldt.topology import Topology
from veldt.types import Layout


@dataclass(frozen=True)
class Config(Options):
    """the preset `paper` has the published constants; the others learn as PPO does."""

    loss: ClippedOptions = ClippedOptions(
        trace_lambda=0.95, normalize_returns=True, ppo=PPOOptions(value_clip=0.2)
    )
    optimizer: OptimizerOptions = OptimizerOptions("rmsprop", 3e-3, max_grad_norm=2.0)
    exploration: DrawOptions = DrawOptions()
    trajectory_steps: Count = 16
    """Environment steps per trajectory."""
    batch_trajectories: Annotated[Count, SAMPLING_OPTIONS] = 2
    """Trajectories (of one group each) joined into one batch, where batch_rows does not say."""
    batch_rows: CountOrNone = 0
    """Rows of a batch, in whole trajectories, however many of these that takes; 0: as many as
    batch_trajectories have."""
    num_envs: CountOrNone = 0
    """Environments of all actors together; 0: by the kind of environment and the cores."""
    groups_per_actor: Annotated[Nodes, SAMPLING_OPTIONS] = 2
    """Groups of environments per actor; 2 hides inference behind stepping."""
    num_policy_workers: Annotated[Nodes, SAMPLING_OPTIONS] = 1
    """Inference servers of each policy."""
    min_requests: Annotated[Count, SAMPLING_OPTIONS] = 1
    """Requests that start a forward pass at once."""
    batch_timeout_seconds: Annotated[NotNegative, SAMPLING_OPTIONS] = 0.0
    """How long a policy worker waits for enough requests."""
    population: PopulationOptions = PopulationOptions()

    def trajectories_per_batch(self, layout: Layout) -> int:
        rows, columns = layout["first"].shape
        wanted = round(self.batch_rows / ((rows - 1) * columns))
        return max(1, wanted) if self.batch_rows else self.batch_trajectories


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments(config.groups_per_actor)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, KEPT)
    num_groups = config.groups_per_actor * problem.num_actors
    batch = config.trajectories_per_batch(layout)

    topology = Topology(network)
    weights = topology.board("weights", network)
    # Two batches on their way is where collection pauses: more would only grow old.
    trajectories = topology.queue("trajectories", layout, num_groups + 2 * batch)
    requests = topology.ask_about("requests", trajectories, problem.num_actors)
    recurrent = topology.share("recurrent", recurrent_memory(network, num_groups, environments))
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                SharedMemoryPolicy(network, requests.client(index)),
                trajectories.sink,
                gamma=config.loss.gamma,
            ),
        )
    selection = SampleActions(keep_value=True, pink_share=config.exploration.noise_share)
    policy = BatchedPolicy(network, weights.source(), selection, problem.compute.device)
    for _ in range(config.num_policy_workers):
        topology.add(
            "policy_worker",
            SharedMemoryInference(
                requests.server,
                policy,
                BatchRule(config.min_requests, num_groups, config.batch_timeout_seconds),
                recurrent.end,
                environments.width,
                config.groups_per_actor,
            ),
        )
    topology.add(
        "learner",
        Learner(
            network,
            trajectories.source(batch),
            clipped(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture(
    "sample_factory",
    Config,
    with_population(build),
    presets("sample_factory", Config()),
    central_inference=True,
    refuses={
        "ray": "sample_factory works in the shared memory of one machine; use --backend process, or"
        " seed_rl on a cluster"
    },
)
