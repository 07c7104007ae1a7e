# SPDX-License-Identifier: Apache-2.0
"""IMPALA (Espeholt et al., 2018).

    actor x N --trajectories--> queue --batch--> learner <-- gradients of learners 2..L, which
       ^                                            |        wait for the step they are part of
       +----------------- weights ------------------+

New since A3C: trajectories travel instead of gradients, so acting and learning are decoupled and
V-trace corrects for the difference between the policy that acted and the one that learns.
Several learners end every step with the same weights; half of each batch may come from a replay.
Several policies (`num_policies`) each have all of the above, and are trained as a population.
One datum: actor -> queue -> learner.
Lag: the time a trajectory takes to be written plus its wait in the queue, in learner updates.
Deviations: an actor steps many environments per forward pass, so a trajectory is [T+1, E] wide and
a batch is a few of them; the paper's batch of 32 is `batch_trajectories` x E columns here. Replayed
trajectories are added to a batch, where the paper's replace half of it: with reduction=sum halve
`batch_trajectories`. The first learner publishes all weights, which the paper's learners share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veldt.architectures import Architecture
from veldt.errors import ConfigurationError
from veldt.losses.actor_critic import ActorCritic, VTraceOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Nodes, Options
from veldt.options.presets import presets
from veldt.population.members import with_population
from veldt.population.rules import PopulationOptions
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import synchronous_group
from veldt.roles.learner import Learner
from veldt.roles.policies import LocalPolicy
from veldt.roles.trajectory_sources import TrajectoryReplayOptions, with_replay
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants. With a
    smaller epsilon RMSProp takes huge steps when a long time without errors ends."""

    loss: VTraceOptions = VTraceOptions(trace_lambda=0.95, normalize_returns=True)
    optimizer: OptimizerOptions = OptimizerOptions(
        "rmsprop", 5e-3, optimizer_epsilon=1e-4, max_grad_norm=2.0
    )
    trajectory_steps: Count = 10
    """Environment steps per trajectory."""
    num_envs: CountOrNone = 0
    """Environments of all actors together; 0: by the kind of environment and the cores."""
    batch_trajectories: CountOrNone = 0
    """Trajectories joined into one batch; 0: one of each actor of a learner, or a single one while
    these are no more than three."""
    queue_trajectories: Count = 2
    """Trajectories per actor that may be in flight to the learner."""
    num_learners: Nodes = 1
    """Learners that take every step together; there are at least as many actors."""
    replay: TrajectoryReplayOptions = TrajectoryReplayOptions()
    population: PopulationOptions = PopulationOptions(pbt_rule="impala")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_learners > 1 and self.population.num_policies > 1:
            raise ConfigurationError("num_learners and num_policies cannot both be above 1")

    def batch_of(self, problem: Problem) -> int:
        """Trajectories in a batch. A learner keeps up with three actors one by one; those of many
        would wait for it and grow old."""
        actors = math.ceil(problem.num_actors / self.num_learners)
        return self.batch_trajectories or (actors if actors > 3 else 1)


def build(config: Config, problem: Problem) -> Topology:
    problem = problem.per_learner(config.num_learners, config.replay.replay_fraction)
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    weights = topology.board("weights", network)
    slots = config.queue_trajectories * math.ceil(problem.num_actors / config.num_learners)
    trajectories = topology.several_queues("trajectories", layout, slots, config.num_learners)
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source()),
                trajectories[index % config.num_learners].sink,
                gamma=config.loss.gamma,
            ),
        )
    group = synchronous_group(
        topology, weights, config.optimizer, config.num_learners, config.loss.reduction
    )
    for queue, gradients in zip(trajectories, group, strict=True):
        source = with_replay(queue.source(config.batch_of(problem)), layout, config.replay)
        topology.add(
            "learner",
            Learner(
                network,
                source,
                ActorCritic(config.loss),
                gradients,
                weights.source(),
                weights.sink if queue is trajectories[0] else None,
                decay=config.optimizer.decays_over(problem.schedule),
                compute=problem.compute,
            ),
        )
    return topology


ARCHITECTURE = Architecture(
    "impala",
    Config,
    with_population(build),
    presets("impala", Config()),
    paper_envs_per_actor=8,
)
