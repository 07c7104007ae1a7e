# SPDX-License-Identifier: Apache-2.0
"""Gorila (Nair et al., 2015).

    actor --trajectories--> replay --batches--> learner --gradients--> parameter server x S
      ^                                            ^                          |
      +--------------------------------------------+--------- weights --------+

New since DQN: many actors, many learners, no barrier. A learner keeps no weights of its own: it
sends gradients to a server cut into shards and pulls what became of them.
One datum: actor -> queue -> replay -> learner -> gradient queues -> shards.
Lag: a gradient is as old as the updates applied since its learner pulled; too old ones are dropped.
With fetch_period_gradients and push_period_gradients above 1 a learner works on between two pulls
and sends the sum of several gradients, as DistBelief's Downpour: fewer bytes, older gradients.
Deviations: in a bundle actor and learner pull for themselves instead of sharing one replica; a
learner never steps its own weights between two fetches, which Downpour does. Shards filter unusual
losses too, because a faulty learner does not filter its own; in the paper only learners do.
The paper names no learning rate; that of the preset `paper` is not published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Nodes, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.learner import Learner
from veldt.roles.parameter_server import (
    DownpourOptions,
    RemoteGradients,
    ServerOptions,
    add_parameter_server,
)
from veldt.roles.policies import LocalPolicy
from veldt.roles.replay import Replay, ReplayOptions, UniformTable
from veldt.roles.selection import EpsilonOptions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    replay: Literal["bundled", "global"] = "bundled"
    """bundled: actor, learner and a replay of their own per process; global: one replay for all."""
    num_learners: Nodes = 2
    """Learners on the global replay; bundles have one per actor."""
    server: ServerOptions = ServerOptions()
    downpour: DownpourOptions = DownpourOptions()
    loss: QLearningOptions = QLearningOptions(n_step=3, target_period_updates=200)
    kept: ReplayOptions = ReplayOptions()
    exploration: EpsilonOptions = EpsilonOptions()
    optimizer: OptimizerOptions = OptimizerOptions("adagrad", 0.03, max_grad_norm=10.0)
    trajectory_steps: Count = 4
    """Rows an actor collects before it hands them to the replay."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("gorila", "discrete")
    problem.require_no_memory("gorila")
    network = problem.network("q", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)
    table = UniformTable(config.kept, layout, config.loss, problem.frame_stack)
    bundled = config.replay == "bundled"
    num_replays, num_actors, num_learners = 1, problem.num_actors, config.num_learners
    if bundled:
        num_replays, num_actors, num_learners = problem.num_actors, 1, 1

    topology = Topology(network)
    server = add_parameter_server(
        topology, network, config.optimizer, config.server, num_replays * num_learners
    )
    explore = config.exploration.greedy(problem.num_actors)
    for number in range(num_replays):
        trajectories = topology.queue(f"replay-{number}-trajectories", layout, 2 * num_actors)
        names = (f"replay-{number}-batches-{learner}" for learner in range(num_learners))
        batches = [topology.queue(name, table.batch_layout, 1) for name in names]
        bundle = [
            topology.add(
                "actor",
                Actor(
                    environments,
                    LocalPolicy(network, server.weights(), explore, refresh_rows=1),
                    trajectories.sink,
                ),
            )
            for _ in range(num_actors)
        ]
        sinks = [queue.sink for queue in batches]
        bundle.append(topology.add("replay", Replay(trajectories.source(), sinks, table)))
        for queue in batches:
            learner = topology.add(
                "learner",
                Learner(
                    network,
                    queue.source(),
                    QLearning(config.loss),
                    RemoteGradients(
                        server, config.server, config.optimizer.max_grad_norm, config.downpour
                    ),
                    server.weights(),
                    decay=config.optimizer.decays_over(problem.schedule),
                    compute=problem.compute,
                ),
            )
            bundle.append(learner)
        if bundled:
            topology.colocate(*bundle)
    return topology


ARCHITECTURE = Architecture(
    "gorila", Config, build, presets("gorila", Config()), default_actors=one_actor_per_core
)
