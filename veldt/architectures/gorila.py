# SPDX-License-Identifier: Apache-2.0
"""Gorila (Nair et al., 2015).

    actor --trajectories--> replay --batches--> learner --gradients--> parameter server x S
      ^                                            ^                          |
      +--------------------------------------------+--------- weights --------+

New since DQN: many actors, many learners, no barrier. A learner keeps no weights of its own: it
sends gradients to a server cut into shards and pulls what became of them.
One datum: actor -> queue -> replay -> learner -> gradient queues -> shards.
Lag: a gradient is as old as the updates applied since its learner pulled; too old ones are dropped.
Deviation: in a bundle actor and learner pull for themselves instead of sharing one replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.problem import Problem
from veldt.replay import UniformSampler
from veldt.roles.actor import Actor
from veldt.roles.gradients.parameter_server import ParameterServer, Server, ShardSettings, shards
from veldt.roles.gradients.remote import RemoteGradientsConfig
from veldt.roles.learner import Learner
from veldt.roles.policies.local import EpsilonGreedy, LocalPolicyConfig, annealed_epsilon
from veldt.roles.replay.replay import Replay, batch_layout
from veldt.settings import EpsilonSettings, OptimizerSettings, ReplaySettings
from veldt.topology import Node, Topology


@dataclass(frozen=True)
class Config(QLearningSettings, ReplaySettings, EpsilonSettings, ShardSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    replay: str = "bundled"
    """bundled: actor, learner and a replay of their own per process; global: one replay for all."""
    num_learners: int = 2
    """Learners on the global replay; bundles have one per actor."""
    num_shards: int = 2
    """Nodes that share the parameter vector between them."""
    n_step: int = 3
    target_period_updates: int = 200
    optimizer: str = "adagrad"
    learning_rate: float = 0.03
    max_grad_norm: float = 10.0


PRESETS = {
    "control": Config(),
    "atari": Config(
        n_step=1,
        double=False,
        td_loss="clipped",
        target_period_updates=60_000,
        max_grad_norm=0.0,
        batch_size=32,
        replay_transitions=1_000_000,
        min_replay_transitions=50_000,
        env_steps_per_update=4.0,
        epsilon_end=0.1,
        epsilon_env_steps=1_000_000,
    ),
}


def default_actors(cores: int) -> int:
    return cores


def build(config: Config, problem: Problem) -> Topology:
    problem.require_action_kind("gorila", "discrete")
    if config.replay not in ("bundled", "global") or config.num_learners < 1:
        raise ConfigurationError("replay is bundled or global, num_learners 1 or more")
    bundled, actors = config.replay == "bundled", problem.num_actors
    users = [(1, 1)] * actors if bundled else [(actors, config.num_learners)]
    topology = Topology("gorila", problem.make_network("q"))
    server = _add_server(topology, config, problem, sum(learners for _, learners in users))
    for each in users:
        nodes = _add_replay(topology, config, problem, server, each)
        if bundled:
            topology.colocate(*nodes)
    return topology


def _add_server(topology: Topology, config: Config, problem: Problem, learners: int) -> Server:
    """The shards, each with a queue for its slice of the gradients and a board for its weights."""
    start = problem.initial_weights(topology.make_network)
    server: Server = []
    for i, shard in enumerate(shards(topology.make_network(), config.num_shards)):
        queue = topology.queue(f"gradients-{i}", shard.layout, 2 * learners)
        board = topology.board(f"weights-{i}", start.vector[shard.part], version=start.version)
        topology.add(
            "parameter_server",
            ParameterServer,
            gradients=queue.source(),
            weights=board.sink,
            initial=board.source(),
            shard=shard,
            optimizer=config.optimizer_config(),
            settings=config,
        )
        server.append((queue, board))
    topology.weights = tuple(board.spec.name for _, board in server)
    return server


def _add_replay(
    topology: Topology, config: Config, problem: Problem, server: Server, users: tuple[int, int]
) -> list[Node]:
    """A replay with its actors and learners: one of each in a bundle, all on a global one."""
    (num_actors, num_learners), make_network = users, topology.make_network
    steps = config.trajectory_steps
    layout = problem.trajectory_layout(make_network(), steps, problem.envs_per_actor)
    boards = [board.source() for _, board in server]
    name = f"replay-{sum(node.kind == 'replay' for node in topology.nodes)}"
    trajectories = topology.queue(f"{name}-trajectories", layout, 2 * num_actors)
    batch = batch_layout(layout, config.batch_size)
    batches = [topology.queue(f"{name}-batches-{i}", batch, 1) for i in range(num_learners)]
    epsilon = partial(annealed_epsilon, *config.schedule(problem.num_actors))
    actor = {
        "sink": trajectories.sink,
        "policy": LocalPolicyConfig(make_network, partial(EpsilonGreedy, epsilon=epsilon), 1),
        "policy_port": boards,
        **problem.for_actor(steps),
    }
    replay = {
        "source": trajectories.source(),
        "sink": [queue.sink for queue in batches],
        "make_store": config.store(layout, config.n_step, config.gamma, problem.frame_stack),
        "make_sampler": UniformSampler,
        "make_limiter": config.limiter(problem.envs_per_actor),
        "batch_size": config.batch_size,
    }
    learner = {
        "weights": None,
        "initial": boards,
        "make_network": make_network,
        "make_objective": partial(QLearning, config=config),
        "gradients": RemoteGradientsConfig(config, config.max_grad_norm),
        "gradient_port": [*(queue.sink for queue, _ in server), *boards],
        **problem.for_learner(config.decay_learning_rate),
    }
    return [
        *(topology.add("actor", Actor, **actor) for _ in range(num_actors)),
        topology.add("replay", Replay, **replay),
        *(topology.add("learner", Learner, source=q.source(), **learner) for q in batches),
    ]
