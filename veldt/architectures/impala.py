# SPDX-License-Identifier: Apache-2.0
"""IMPALA (Espeholt et al., 2018).

    actor x N --trajectories--> queue --batch--> learner <-- gradients of learners 2..L, which
       ^                                            |        wait for the step they are part of
       +----------------- weights ------------------+

New since A3C: trajectories travel instead of gradients, so acting and learning are decoupled and
V-trace corrects for the difference between the policy that acted and the one that learns.
Several learners end every step with the same weights; half of each batch may come from a replay.
Several policies (`num_policies`) each have actors and a learner, and are trained as a population.
One datum: actor -> queue -> learner.
Lag: the time a trajectory takes to be written plus its wait in the queue, in learner updates.
Deviation: an actor steps many environments per forward pass, so a trajectory is [T+1, E] wide and a
batch is a few of them; the paper's batch of 32 is `batch_trajectories` x E columns here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.population.settings import ActorPopulationSettings
from veldt.population.wiring import Population
from veldt.problem import Problem
from veldt.roles.gradients.synchronous_group import synchronous_group
from veldt.roles.policies.local import LocalPolicyConfig
from veldt.roles.replay.trajectories import TrajectoryReplayConfig
from veldt.topology import Topology
from veldt.types import Layout


@dataclass(frozen=True)
class Config(ActorCriticSettings, ActorPopulationSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the paper's constants."""

    optimizer: str = "rmsprop"
    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory."""
    batch_trajectories: int = 1
    """Trajectories joined into one batch."""
    queue_trajectories: int = 2
    """Trajectories per actor that may be under way to the learner."""
    num_learners: int = 1
    """Learners that take every step together; there are at least as many actors."""
    replay_fraction: float = 0.0
    """Share of each batch that is replayed (the paper's variant: 0.5); 0: no replay."""
    replay_trajectories: int = 10_000
    """Trajectories of one environment that a learner keeps for replay; the oldest go first."""

    def __post_init__(self) -> None:
        if self.num_learners < 1:
            raise ConfigurationError("num_learners must be 1 or more")
        if self.num_learners > 1 and self.num_policies > 1:
            raise ConfigurationError("num_learners and num_policies cannot both be above 1")
        if not 0.0 <= self.replay_fraction < 1.0:
            raise ConfigurationError("replay_fraction must be from 0 to below 1")

    def replay(self, layout: Layout) -> TrajectoryReplayConfig | None:
        if self.replay_fraction == 0.0:
            return None
        return TrajectoryReplayConfig(layout, self.replay_trajectories, self.replay_fraction)

    def decay_env_steps(self, problem: Problem) -> int | None:
        """Rows that one learner trains on, replayed ones included, until the learning rate is 0."""
        if not self.decay_learning_rate or problem.total_env_steps is None:
            return None
        fresh = problem.total_env_steps / (self.num_learners * self.num_policies)
        return round(fresh / (1.0 - self.replay_fraction))


PRESETS = {
    "control": Config(),
    "atari": Config(
        trajectory_steps=20,
        trace_lambda=1.0,
        normalize_returns=False,
        reduction="sum",
        optimizer="rmsprop",
        learning_rate=6e-4,
        decay_learning_rate=True,
        optimizer_epsilon=0.01,
        max_grad_norm=40.0,
        pbt_start_env_steps=5_000_000,
        pbt_period_env_steps=1_250_000,
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    make_network = problem.make_network("policy_value", normalize_returns=config.normalize_returns)
    network = make_network()
    layout = problem.trajectory_layout(network, config.trajectory_steps, problem.envs_per_actor)

    topology = Topology("impala", make_network)
    population = Population(topology, config, problem, make_network)
    num_learners = max(config.num_learners, population.size)
    num_actors = max(problem.num_actors, num_learners)
    num_slots = config.queue_trajectories * -(-num_actors // num_learners)
    names = [f"trajectories-{index}" if index else "trajectories" for index in range(num_learners)]
    layout = population.trajectories(layout, mixed=False)
    queues = [topology.queue(name, layout, num_slots) for name in names]
    for index in range(num_actors):
        policy = index % population.size
        topology.add(
            "actor",
            population.actor,
            sink=queues[index % num_learners].sink,
            policy=LocalPolicyConfig(make_network),
            policy_port=population.weights[policy].source(),
            gamma=config.gamma,
            **population.for_actor(config.trajectory_steps, policy),
        )
    sinks = synchronous_group(
        topology,
        population.weights[0],
        network,
        config.optimizer_config(),
        config.num_learners,
        config.reduction,
    )
    for index, (gradients, gradient_port) in enumerate(population.size * sinks):
        weights = population.weights[index % population.size]
        topology.add(
            "learner",
            population.learner,
            source=queues[index].source(config.batch_trajectories),
            make_source=config.replay(layout),
            weights=weights.sink if index < population.size else None,
            initial=weights.source(),
            make_network=make_network,
            make_objective=partial(ActorCritic, config=config),
            gradients=gradients,
            gradient_port=gradient_port,
            **population.for_learner(index, config.decay_env_steps(problem)),
        )
    population.add_controller()
    return topology
