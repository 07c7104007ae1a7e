# SPDX-License-Identifier: Apache-2.0
"""Sample Factory with several policies, which play side by side in the environments of one actor:
each has policy workers and a learner of its own, and a sorter deals columns to the learners."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from veldt.errors import ConfigurationError
from veldt.losses.ppo import clipped
from veldt.population.actor import PopulationActor, SharedMemoryPolicies
from veldt.population.column_policy import ColumnPolicy
from veldt.population.column_sorter import ColumnSorter, sorted_layout, with_policies
from veldt.population.learner import PopulationLearner
from veldt.population.wiring import Population
from veldt.problem import Problem
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.inference.batch_rule import BatchRule
from veldt.roles.inference.batched_policy import recurrent_memory
from veldt.roles.inference.shared_memory import SharedMemoryInference
from veldt.roles.policies.selection import KEPT, SampleActions
from veldt.topology import Topology, numbered

if TYPE_CHECKING:
    from veldt.architectures.sample_factory import Config

_BATCHES_PER_POLICY = 3  # one is being filled, one waits, one is learned from


def build(config: Config, problem: Problem) -> Topology:
    if config.synchronous:
        raise ConfigurationError("synchronous goes with one policy; leave num_policies at 1")
    size = config.population.num_policies
    network = problem.network("policy_value", config.loss)
    environments = problem.environments(config.groups_per_actor)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, KEPT)
    num_groups = config.groups_per_actor * problem.num_actors

    topology = Topology(network)
    population = Population(
        topology, problem, config.population, config.optimizer, config.loss.entropy_coefficient
    )
    layout = with_policies(population.with_components(layout))
    batch = config.trajectories_per_batch(layout, num_groups)
    trajectories = topology.queue("trajectories", layout, num_groups + 2 * batch)
    requests = [
        topology.ask_about(name, trajectories, problem.num_actors)
        for name in numbered("requests", size)
    ]
    recurrent = topology.share("recurrent", recurrent_memory(network, num_groups, environments))
    columns = sorted_layout(layout, batch * environments.width)
    names = [f"batches-{policy}" for policy in range(size)]
    batches = [topology.queue(name, columns, _BATCHES_PER_POLICY) for name in names]
    by_episode = config.population.policy_assignment == "episode"
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            PopulationActor(
                environments,
                SharedMemoryPolicies(network, [channel.client(index) for channel in requests]),
                trajectories.sink,
                gamma=config.loss.gamma,
                casting=population.casting(by_episode=by_episode),
            ),
        )
    for policy, _ in product(range(size), range(config.num_policy_workers)):
        acting = ColumnPolicy(
            network,
            population.weights[policy].source(),
            SampleActions(keep_value=True),
            problem.compute.device,
            policy=policy,
        )
        topology.add(
            "policy_worker",
            SharedMemoryInference(
                requests[policy].server,
                acting,
                BatchRule(config.enough_requests, num_groups, config.patience_seconds),
                recurrent.end,
                environments.width,
                config.groups_per_actor,
            ),
        )
    sinks = [queue.sink for queue in batches]
    topology.add("sorter", ColumnSorter(trajectories.source(), sinks, columns))
    share = problem.total_env_steps and problem.total_env_steps // size
    for policy, weights in enumerate(population.weights):
        topology.add(
            "learner",
            PopulationLearner(
                network,
                batches[policy].source(),
                clipped(config.loss),
                LocalOptimizer(config.optimizer),
                weights.source(),
                weights.sink,
                decay_env_steps=config.optimizer.decays_over(share),
                compute=problem.compute,
                membership=population.membership(policy),
            ),
        )
    topology.add("population", population.controller())
    return topology
