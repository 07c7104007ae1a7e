# SPDX-License-Identifier: Apache-2.0
"""A3C (Mnih et al., 2016).

    worker x N:  actor --trajectory--> learner
                   ^                    |   ^
                   +------- copy -------+   | gradients, lock-free; then a copy back
                                            v
                     shared weights and RMSProp statistics (Hogwild)

New since Gorila: one machine instead of a server. Each worker acts with its own copy, computes the
gradient on exactly that copy and writes it into shared memory without locks or barriers. No replay:
many workers in different places decorrelate the data.
One datum: actor -> its own learner; only its gradient leaves the worker.
Lag: updates by other workers since the copy was taken.
Deviation: a worker steps several environments per forward pass instead of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.networks import FlatParameters
from veldt.objectives.actor_critic import ActorCritic
from veldt.objectives.asynchronous_q import AsynchronousQ, AsynchronousQSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.hogwild import share_hogwild
from veldt.roles.learner import Learner
from veldt.roles.policies.local import LocalPolicyConfig, SampleActions, drawn_epsilon
from veldt.settings import OptimizerSettings
from veldt.topology import Topology

BACKENDS = ("serial", "process")
WHY_NOT_EVERYWHERE = (
    "a3c's workers write into the memory of one machine, which Ray's actors do not share; use"
    " --backend process, or impala or gorila on a cluster"
)


@dataclass(frozen=True)
class Config(AsynchronousQSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    correction: str = "none"
    optimizer: str = "rmsprop"
    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    shared_statistics: bool = True
    """All workers use and change one mean square; sgd's momentum is always the worker's own."""
    trajectory_steps: int = 10
    """Environment steps between two updates of a worker (t_max)."""
    clusters: int = 1
    """Copies of the weights; more than one is Hogwild++: deltas go around a ring of clusters."""
    ring_period_updates: int = 8
    """Updates of a cluster's first worker between two turns of the ring."""


PRESETS = {
    "control": Config(),
    "atari": Config(
        trajectory_steps=5,
        trace_lambda=1.0,
        normalize_returns=False,
        reduction="sum",
        learning_rate=7e-4,
        decay_learning_rate=True,
        optimizer_epsilon=0.1,
        max_grad_norm=40.0,
        # The gradient of the value is halved before a plain square; here it is half a square.
        value_coefficient=1.0,
        target_period_updates=8_000,
        epsilon_env_steps=4_000_000,
    ),
}


def default_actors(cores: int) -> int:
    return cores  # one worker each


def build(config: Config, problem: Problem) -> Topology:
    value_based = config.is_value_based
    if value_based:
        problem.require_action_kind(config.algorithm, "discrete")
    make_network = problem.make_network(
        "q" if value_based else "policy_value", normalize_returns=config.normalize_returns
    )
    network = make_network()
    layout = problem.trajectory_layout(network, config.trajectory_steps, problem.envs_per_actor)
    initial = problem.initial_weights(make_network)

    topology = Topology("a3c", make_network)
    sinks = share_hogwild(
        topology,
        initial,
        FlatParameters(network).num_trained,
        config.optimizer_config(),
        problem.num_actors,
        config.shared_statistics and config.optimizer != "sgd",
        config.clusters,
        config.ring_period_updates,
    )
    # Nobody counts the steps of all workers, so each decays its learning rate by its own.
    steps_per_worker = (problem.total_env_steps or 0) // problem.num_actors or None
    target = config.share_target(topology, initial) if value_based else None
    selection = partial(drawn_epsilon, config) if value_based else SampleActions
    objective = partial(AsynchronousQ if value_based else ActorCritic, config=config)
    for worker, (gradients, gradient_port) in enumerate(sinks):
        trajectory = topology.queue(f"trajectory-{worker}", layout, num_slots=1)
        own_copy = topology.board(f"copy-{worker}", initial.vector, version=initial.version)
        actor = topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            sink=trajectory.sink,
            policy=LocalPolicyConfig(make_network, selection),
            policy_port=own_copy.source(),
            synchronous=True,
            gamma=config.gamma,
        )
        learner = topology.add(
            "learner",
            Learner,
            source=trajectory.source(),
            weights=own_copy.sink,
            initial=own_copy.source(),
            make_network=make_network,
            make_objective=objective,
            objective_port=target,
            gradients=gradients,
            gradient_port=gradient_port,
            total_env_steps=steps_per_worker if config.decay_learning_rate else None,
        )
        topology.colocate(actor, learner, restartable=True)  # all it knows is in shared memory
    return topology
