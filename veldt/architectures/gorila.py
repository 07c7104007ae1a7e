# SPDX-License-Identifier: Apache-2.0
"""Gorila (Nair et al., 2015).

    actor --trajectories--> replay --batches--> learner --gradients--> parameter server x S
      ^                                            ^                          |
      +--------------------------------------------+--------- weights --------+

New since DQN: many actors and many learners at once. A learner keeps no weights of its own: it sends
gradients to a server cut into shards and pulls what became of them, without a barrier anywhere.
One datum: actor -> queue -> replay -> learner -> gradient queues -> shards.
Lag: a gradient is as old as the updates applied since its learner pulled; too old ones are dropped.
Deviation: in a bundle actor and learner pull for themselves instead of sharing one replica; each
shard judges age by its own version, as the slices of one pull may be a few updates apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.problem import Problem
from veldt.replay import TransitionStore, UniformSampler
from veldt.roles.actor import Actor
from veldt.roles.joined_source import cut
from veldt.roles.learner import Learner
from veldt.roles.parameter_server import ParameterServer, ShardSettings, gradient_layout
from veldt.roles.policy import EpsilonGreedy, LocalPolicyConfig, annealed_epsilon
from veldt.roles.remote_gradients import RemoteGradientsConfig
from veldt.roles.replay import Replay, batch_layout
from veldt.settings import EpsilonSettings, OptimizerSettings, ReplaySettings
from veldt.topology import Board, Node, Queue, Topology


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
    optimizer: str = "adagrad"
    learning_rate: float = 0.03
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay not in ("bundled", "global"):
            raise ConfigurationError(f"unknown replay '{self.replay}'; use bundled or global")
        if self.num_learners < 1:
            raise ConfigurationError("num_learners must be 1 or more")


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
    topology = Topology("gorila", problem.make_network("q"))
    gradients, weights = _add_server(topology, config, problem)
    if config.replay == "global":
        _add_replay(
            topology, config, problem, gradients, weights, (problem.num_actors, config.num_learners)
        )
        return topology
    for _ in range(problem.num_actors):
        bundle = _add_replay(topology, config, problem, gradients, weights, (1, 1))
        topology.colocate(*bundle)
    return topology


def _add_server(
    topology: Topology, config: Config, problem: Problem
) -> tuple[list[Queue], list[Board]]:
    """The shards, each with a queue for its slice of the gradients and a board for its weights."""
    flat, initial = (
        FlatParameters(topology.make_network()),
        problem.initial_weights(topology.make_network),
    )
    num_learners = problem.num_actors if config.replay == "bundled" else config.num_learners
    gradients, boards = [], []
    for shard, part in enumerate(cut(flat.size, flat.num_trained, config.num_shards)):
        num_trained = min(part.stop, flat.num_trained) - part.start
        num_statistics = part.stop - part.start - num_trained
        layout = gradient_layout(num_trained, num_statistics)
        queue = topology.queue(f"gradients-{shard}", layout, 2 * num_learners)
        board = topology.board(f"weights-{shard}", initial.vector[part], version=initial.version)
        topology.add(
            "parameter_server",
            ParameterServer,
            gradients=queue.source(),
            weights=board.sink,
            initial=board.source(),
            num_trained=num_trained,
            num_statistics=num_statistics,
            optimizer=config.optimizer_config(),
            settings=config,
        )
        gradients.append(queue)
        boards.append(board)
    topology.weights = tuple(board.spec.name for board in boards)
    return gradients, boards


def _add_replay(
    topology: Topology,
    config: Config,
    problem: Problem,
    gradients: list[Queue],
    weights: list[Board],
    users: tuple[int, int],
) -> list[Node]:
    """A replay with its actors and learners: one of each in a bundle, all of them on a global one."""
    num_actors, num_learners = users
    make_network, number = (
        topology.make_network,
        sum(node.kind == "replay" for node in topology.nodes),
    )
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor
    )
    trajectories = topology.queue(f"trajectories-{number}", layout, 2 * num_actors)
    horizon = config.epsilon_env_steps / problem.num_actors
    epsilon = partial(annealed_epsilon, config.epsilon_start, config.epsilon_end, horizon)
    boards = [board.source() for board in weights]
    nodes = [
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            sink=trajectories.sink,
            policy=LocalPolicyConfig(
                make_network, partial(EpsilonGreedy, epsilon=epsilon), refresh_rows=1
            ),
            policy_port=boards,
        )
        for _ in range(num_actors)
    ]
    queues = [
        topology.queue(f"batches-{number}-{learner}", batch_layout(layout, config.batch_size), 1)
        for learner in range(num_learners)
    ]
    nodes.append(
        topology.add(
            "replay",
            Replay,
            source=trajectories.source(),
            sink=[queue.sink for queue in queues],
            make_store=partial(
                TransitionStore,
                layout,
                config.replay_transitions,
                n_step=config.n_step,
                discount=config.gamma,
                frame_stack=problem.frame_stack,
            ),
            make_sampler=UniformSampler,
            make_limiter=config.limiter(problem.envs_per_actor),
            batch_size=config.batch_size,
        )
    )
    for batches in queues:
        nodes.append(
            topology.add(
                "learner",
                Learner,
                source=batches.source(),
                weights=None,
                initial=boards,
                make_network=make_network,
                make_objective=partial(QLearning, config=config),
                gradients=RemoteGradientsConfig(config, config.max_grad_norm),
                gradient_port=[*(queue.sink for queue in gradients), *boards],
                total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
                device=problem.device,
                torch_threads=problem.learner_threads,
            )
        )
    return nodes
