# SPDX-License-Identifier: Apache-2.0
"""IMPALA with several policies: each has actors, a queue and a learner of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from veldt.losses.actor_critic import ActorCritic
from veldt.population.actor import PopulationActor
from veldt.population.learner import PopulationLearner
from veldt.population.wiring import Population
from veldt.problem import Problem
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.policies.local import LocalPolicy
from veldt.roles.replay.trajectories import with_replay
from veldt.topology import Topology

if TYPE_CHECKING:
    from veldt.architectures.impala import Config


def build(config: Config, problem: Problem) -> Topology:
    size = config.population.num_policies
    problem = problem.per_learner(size, config.replay.replay_fraction)
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    population = Population(
        topology, problem, config.population, config.optimizer, config.loss.entropy_coefficient
    )
    layout = population.with_components(layout)
    slots = config.queue_trajectories * math.ceil(problem.num_actors / size)
    queues = topology.several_queues("trajectories", layout, slots, size)
    for index in range(problem.num_actors):
        policy = index % size
        topology.add(
            "actor",
            PopulationActor(
                environments,
                LocalPolicy(network, population.weights[policy].source()),
                queues[policy].sink,
                gamma=config.loss.gamma,
                casting=population.casting(policy),
            ),
        )
    for policy, weights in enumerate(population.weights):
        source = queues[policy].source(config.batch_of(problem))
        topology.add(
            "learner",
            PopulationLearner(
                network,
                with_replay(source, layout, config.replay),
                ActorCritic(config.loss),
                LocalOptimizer(config.optimizer),
                weights.source(),
                weights.sink,
                decay_env_steps=config.optimizer.decays_over(problem.total_env_steps),
                compute=problem.compute,
                membership=population.membership(policy),
            ),
        )
    topology.add("population", population.controller())
    return topology
