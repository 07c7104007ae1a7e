# SPDX-License-Identifier: Apache-2.0
"""IMPALA (Espeholt et al., 2018).

    actor x N --trajectories--> queue --batch--> learner <-- gradients of learners 2..L, which
       ^                                            |        wait for the step they are part of
       +----------------- weights ------------------+

New since A3C: trajectories travel instead of gradients, so acting and learning are decoupled and
V-trace corrects for the difference between the policy that acted and the one that learns.
Several learners end every step with the same weights; half of each batch may come from a replay.
One datum: actor -> queue -> learner.
Lag: the time a trajectory takes to be written plus its wait in the queue, in learner updates.
Deviation: an actor steps many environments per forward pass, so a trajectory is [T+1, E] wide and a
batch is a few of them; the paper's batch of 32 is `batch_trajectories` x E columns here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.learner import Learner
from veldt.roles.policy import LocalPolicyConfig
from veldt.roles.synchronous_group import synchronous_group
from veldt.roles.trajectory_replay import TrajectoryReplayConfig
from veldt.settings import OptimizerSettings
from veldt.topology import Topology
from veldt.types import Layout


@dataclass(frozen=True)
class Config(ActorCriticSettings, OptimizerSettings):
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
        fresh = problem.total_env_steps / self.num_learners
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
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    make_network = problem.make_network("policy_value", normalize_returns=config.normalize_returns)
    network = make_network()
    layout = problem.trajectory_layout(network, config.trajectory_steps, problem.envs_per_actor)
    initial = problem.initial_weights(make_network)
    num_learners = config.num_learners
    num_actors = max(problem.num_actors, num_learners)

    topology = Topology("impala", make_network)
    num_slots = config.queue_trajectories * -(-num_actors // num_learners)
    names = [f"trajectories-{index}" if index else "trajectories" for index in range(num_learners)]
    queues = [topology.queue(name, layout, num_slots) for name in names]
    weights = topology.board("weights", initial.vector, version=initial.version)
    for index in range(num_actors):
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            sink=queues[index % num_learners].sink,
            policy=LocalPolicyConfig(make_network),
            policy_port=weights.source(),
            gamma=config.gamma,
        )
    sinks = synchronous_group(
        topology,
        weights,
        FlatParameters(network).num_trained,
        config.optimizer_config(),
        num_learners,
        config.reduction,
    )
    for index, (gradients, gradient_port) in enumerate(sinks):
        topology.add(
            "learner",
            Learner,
            source=queues[index].source(config.batch_trajectories),
            make_source=config.replay(layout),
            weights=None if index else weights.sink,
            initial=weights.source(),
            make_network=make_network,
            make_objective=partial(ActorCritic, config=config),
            gradients=gradients,
            gradient_port=gradient_port,
            total_env_steps=config.decay_env_steps(problem),
            device=problem.device,
            torch_threads=problem.learner_threads,
        )
    return topology
