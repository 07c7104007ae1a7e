# SPDX-License-Identifier: Apache-2.0
"""Asynchronous Q-learning: one-step Q, n-step Q and one-step Sarsa (Mnih et al., 2016).

    worker x N:  actor --trajectory--> learner
                   ^                    |   ^  ^
                   +------- copy -------+   |  +-- shared target network
                                            v
                     shared weights and RMSProp statistics (Hogwild)

New since Gorila: one machine instead of a server, no replay. A3C's workers with a Q network: each
explores with an epsilon that ends elsewhere, and all share one target network.
One datum: actor -> its own learner; only its gradient leaves the worker.
Lag: updates by other workers since the copy was taken.
Deviation: a worker steps several environments per forward pass, with the paper preset one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.asynchronous_q import AsynchronousQ, AsynchronousQOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.hogwild import HogwildOptions, hogwild_workers
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.policies import LocalPolicy
from veldt.roles.selection import AnnealedEpsilon, EpsilonGreedy
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: AsynchronousQOptions = AsynchronousQOptions()
    optimizer: OptimizerOptions = OptimizerOptions("rmsprop", 5e-3, max_grad_norm=2.0)
    hogwild: HogwildOptions = HogwildOptions()
    trajectory_steps: Count = 10
    """Environment steps between two updates of a worker (t_max)."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("async_q", "discrete")
    network = problem.network("q", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    workers = hogwild_workers(
        topology, network, config.optimizer, config.hogwild, problem.num_actors
    )
    target = topology.share("target", network.initial_vector())
    refreshes = topology.share("target.refreshes", np.zeros(1, np.int64))
    explore = EpsilonGreedy(AnnealedEpsilon.drawn(config.loss, problem.num_actors))
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
                LocalPolicy(network, weights.source(), explore),
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
                AsynchronousQ(config.loss, target.end, refreshes.end),
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
    "async_q",
    Config,
    build,
    presets("async_q", Config()),
    paper_envs_per_actor=1,
    default_actors=one_actor_per_core,
    refuses={
        "ray": "async_q's workers write into the memory of one machine; use --backend process, or"
        " gorila on a cluster",
        "cuda": "async_q's workers write into memory that all processors share, so device cuda is"
        " not available; use gorila or apex",
    },
)
