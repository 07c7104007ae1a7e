# SPDX-License-Identifier: Apache-2.0
"""SEED RL (Espeholt et al., 2020), with V-trace or R2D2.

    actor x N ==observations==> stream ==> inference --trajectories--> queue --> learner
        <==actions, one stream per actor==     ^     (r2d2: a replay of sequences)  |
                                               +------------- weights --------------+
                                            one process and device, a thread for each

New since IMPALA: actors hold no weights. They stream observations to a server on the learner's
device, which answers many of them in one forward pass and assembles the trajectories itself.
One datum: actor -> stream -> inference -> queue [-> replay] -> learner.
Lag: the wait in the queue and the rows still to come. Weights may change between any two rows, so
each row keeps its version and what the policy thought.
Deviation: the server waits for half of all groups, but at most `patience_seconds`: a dead actor
cannot stall the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from veldt.errors import ConfigurationError
from veldt.networks import Network
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.objectives.r2d2 import R2D2
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.batch_rule import BatchRule
from veldt.roles.central_exploration import LadderGreedy
from veldt.roles.central_inference import CentralInference
from veldt.roles.gradients import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policy import SampleActions, Selection
from veldt.roles.replay import Replay, priority_layout
from veldt.roles.sequence_replay import SequenceReplaySettings
from veldt.roles.stream_policy import ScratchSink, StreamPolicyConfig, answer_layout, request_layout
from veldt.settings import OptimizerSettings
from veldt.topology import Node, Queue, Topology


@dataclass(frozen=True)
class Config(ActorCriticSettings, SequenceReplaySettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    algorithm: str = "vtrace"
    """vtrace (policy and value) or r2d2 (recurrent Q-learning from a replay)."""
    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory; r2d2: unroll_steps is a multiple of it."""
    batch_trajectories: int = 1
    """vtrace: trajectories (of one group each) joined into one batch."""
    groups_per_actor: int = 1
    """Groups of environments per actor; 2 hides inference behind stepping."""
    patience_seconds: float = 0.02
    """How long the server waits for half of all groups before it answers those that asked."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("vtrace", "r2d2"):
            raise ConfigurationError(f"unknown algorithm '{self.algorithm}'; use vtrace or r2d2")

    def network(self, problem: Problem) -> Callable[[], Network]:
        if self.algorithm == "vtrace":
            return problem.make_network("policy_value", normalize_returns=self.normalize_returns)
        problem.require_action_kind("seed_rl with r2d2", "discrete")
        core = problem.network.recurrent
        return problem.make_network("q", dueling=True, recurrent="lstm" if core == "none" else core)

    def selection(self, num_envs: int) -> Callable[..., Selection]:
        if self.algorithm == "vtrace":
            return SampleActions
        base, alpha = self.epsilon_base, self.epsilon_alpha
        return partial(LadderGreedy, num_envs=num_envs, base=base, alpha=alpha)


PRESETS = {
    "control": Config(),
    "control_r2d2": Config(algorithm="r2d2", learning_rate=1e-3, max_grad_norm=40.0),
}


def default_actors(cores: int) -> int:
    return cores - 1


def build(config: Config, problem: Problem) -> Topology:
    groups = config.groups_per_actor
    width, rest = divmod(problem.envs_per_actor, groups)
    if rest:
        raise ConfigurationError(
            f"{problem.envs_per_actor} environments per actor do not split into {groups} equal"
            " groups; choose a multiple with --envs-per-actor, or other --groups-per-actor"
        )
    num_groups = groups * problem.num_actors
    make_network = config.network(problem)
    layout = problem.trajectory_layout(make_network(), config.trajectory_steps, width)
    request, answer = request_layout(layout), answer_layout(problem.spec.action, width)

    topology = Topology("seed_rl", make_network)
    stream = topology.stream("stream", request, answer, problem.num_actors, groups)
    num_slots = 2 * config.batch_trajectories + num_groups
    trajectories = topology.queue("trajectories", layout, num_slots)
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            Actor,
            sink=ScratchSink(layout, groups),
            policy=StreamPolicyConfig(request),
            policy_port=stream.client(index),
            num_groups=groups,
            gamma=config.gamma,
            **problem.for_actor(config.trajectory_steps),
        )
    initial = problem.initial_weights(make_network)
    weights = topology.board("weights", initial.vector, version=initial.version)
    server = topology.add(
        "inference",
        CentralInference,
        stream=stream.server,
        sink=trajectories.sink,
        parameters=weights.source(),
        make_network=make_network,
        make_selection=config.selection(num_groups * width),
        answer=answer,
        num_steps=config.trajectory_steps,
        group_width=width,
        num_groups=num_groups,
        groups_per_client=groups,
        rule=BatchRule(max(1, num_groups // 2), num_groups, config.patience_seconds),
        device=problem.device,
    )
    experience, replay = _experience(config, problem, topology, trajectories)
    learner = topology.add(
        "learner",
        Learner,
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        **experience,
        **problem.for_learner(config.decay_learning_rate),
    )
    topology.colocate(server, *replay, learner, threads=True)
    return topology


def _experience(
    config: Config, problem: Problem, topology: Topology, trajectories: Queue
) -> tuple[dict[str, Any], list[Node]]:
    """What the learner learns and from where; the replay, if there is one."""
    if config.algorithm == "vtrace":
        source = trajectories.source(config.batch_trajectories)
        return {"source": source, "make_objective": partial(ActorCritic, config=config)}, []
    layout, size, ahead = trajectories.spec.layout, config.batch_sequences, config.prefetch_batches
    batches = topology.queue("batches", config.batch_layout(layout), ahead)
    priorities = topology.queue("priorities", priority_layout(size), ahead + 2)
    replay = topology.add(
        "replay",
        Replay,
        source=trajectories.source(),
        sink=batches.sink,
        feedback=priorities.source(),
        make_store=config.store(layout, config.gamma, problem.frame_stack),
        make_sampler=config.sampler(),
        make_limiter=config.limiter(layout["first"].shape[1]),
        batch_size=size,
        initial_priorities=True,
    )
    objective = partial(R2D2, config=config, gamma=config.gamma)
    learner = {"source": batches.source(), "feedback": priorities.sink, "make_objective": objective}
    return learner, [replay]
