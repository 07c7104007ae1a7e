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
Deviations: a worker steps several environments per forward pass, with the paper preset one. With
trace_lambda below 1 the value's target is the lambda-return, but the policy's advantage is r +
gamma v_{s+1} - V with that target v, as in V-trace, and not GAE's; the paper preset has 1, where
they agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.hogwild import HogwildOptions, hogwild_workers
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.policies import LocalPolicy
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants. With a
    smaller epsilon RMSProp takes huge steps when a long time without errors ends."""

    loss: ActorCriticOptions = ActorCriticOptions(
        correction="none", trace_lambda=0.95, normalize_returns=True
    )
    optimizer: OptimizerOptions = OptimizerOptions(
        "rmsprop", 5e-3, optimizer_epsilon=1e-4, max_grad_norm=2.0
    )
    hogwild: HogwildOptions = HogwildOptions()
    trajectory_steps: Count = 10
    """Environment steps between two updates of a worker (t_max)."""


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    workers = hogwild_workers(
        topology, network, config.optimizer, config.hogwild, problem.num_actors
    )
    # No process counts the steps of all workers, so each decays its rate by its own steps.
    schedule = problem.per_learner(problem.num_actors).schedule
    first_weights = network.initial_vector()
    for number, gradients in enumerate(workers):
        weights = topology.board(f"copy-{number}", first_weights)
        trajectories = topology.queue(f"trajectory-{number}", layout, 1)
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source()),
                trajectories.sink,
                pacing=Pacing(weights.source()),
                gamma=config.loss.gamma,
            ),
        )
        topology.add(
            "learner",
            Learner(
                network,
                trajectories.source(),
                ActorCritic(config.loss),
                gradients,
                weights.source(),
                weights.sink,
                decay=config.optimizer.decays_over(schedule),
            ),
        )
        # All that these two know is in shared memory.
        topology.colocate(*topology.nodes[-2:], restartable=True)
    return topology


ARCHITECTURE = Architecture(
    "a3c",
    Config,
    build,
    presets("a3c", Config()),
    paper_envs_per_actor=1,
    default_actors=one_actor_per_core,
    refuses={
        "ray": "a3c's workers write into the memory of one machine; use --backend process, or"
        " impala or gorila on a cluster",
        "cuda": "a3c's workers write into memory that all processors share, so device cuda is not"
        " available; use ga3c, which puts one model on the GPU, or impala",
    },
)
