# SPDX-License-Identifier: Apache-2.0
"""Sebulba (Hessel et al., 2021, as Podracer), also known from Cleanba (Huang et al., 2023).

    actor x N ==rows==> requests --> policy worker <-- weights, one update old --+
       |    <==actions, in the same rows==                                       |
       +------ slot numbers ------> queue --one batch of all groups--> learner --+

New since Sample Factory: a fixed pace. Actors collect batch k+1 with the weights that batch k-1
gave, while the learner learns from batch k: both work all the time, and each row is one update old.
Each batch contains one trajectory of every group, in a fixed place. On a CPU every group is
answered in a forward pass of its own, so no bit of the result depends on timing.
One datum: actor -> slot -> policy worker -> slot -> learner.
Lag: `eta` updates; 0 is PPO's barrier. Only the first batches have less.
Deviations: the policy worker, and not each actor, has the device; an actor alternates between two
groups instead of running in two threads; the loss is PPO's, where Podracer uses V-trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture
from veldt.losses.ppo import PPO, ClippedOptions, PPOOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Nodes, Options
from veldt.options.groups import SAMPLING_OPTIONS
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.inference import BatchedPolicy, BatchRule, SharedMemoryInference, recurrent_memory
from veldt.roles.learner import Learner
from veldt.roles.pacing import Eta, Pacing
from veldt.roles.policies import SharedMemoryPolicy
from veldt.roles.selection import KEPT, DrawOptions, SampleActions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """The presets are those of `ppo`."""

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
    eta: Eta = 1
    """Batches that actors may be ahead of the learner, and so the lag; 0 is PPO's barrier."""
    groups_per_actor: Annotated[Nodes, SAMPLING_OPTIONS] = 2
    """Groups of environments per actor; 2 hides inference behind stepping."""


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments(config.groups_per_actor)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, KEPT)
    num_groups = config.groups_per_actor * problem.num_actors

    topology = Topology(network)
    weights = topology.board("weights", network, config.eta + 1)
    pacing = Pacing(weights.source(), config.eta)
    trajectories = topology.queue("trajectories", layout, pacing.slots(num_groups))
    requests = topology.ask_about("requests", trajectories, problem.num_actors)
    recurrent = topology.share("recurrent", recurrent_memory(network, num_groups, environments))
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                SharedMemoryPolicy(network, requests.client(index)),
                trajectories.sink,
                pacing=pacing,
                gamma=config.loss.gamma,
            ),
        )
    selection = SampleActions(keep_value=True, pink_share=config.exploration.noise_share)
    # A pass on a GPU takes as long for many groups as for one; half of them step meanwhile.
    together = 1 if problem.compute.device == "cpu" else max(1, num_groups // 4)
    policy = BatchedPolicy(network, weights.source(), selection, problem.compute.device)
    topology.add(
        "policy_worker",
        SharedMemoryInference(
            requests.server,
            policy,
            BatchRule(together, num_groups, 0.001),
            recurrent.end,
            environments.width,
            config.groups_per_actor,
            pacing=pacing,
        ),
    )
    topology.add(
        "learner",
        Learner(
            network,
            pacing.batches(trajectories, problem, config.groups_per_actor),
            PPO(config.loss, without_lag=config.eta == 0),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture(
    "sebulba",
    Config,
    build,
    presets("ppo", Config()),
    central_inference=True,
    refuses={
        "ray": "sebulba works in the shared memory of one machine; use --backend process, or"
        " ppo on a cluster"
    },
)
