# SPDX-License-Identifier: Apache-2.0
"""SEED RL (Espeholt et al., 2020), with V-trace or R2D2.

    actor x N ==observations==> stream ==> inference --trajectories--> queue --> learner
        <==actions, one stream per actor==     ^     (r2d2: a replay of sequences)  |
                                               +------------- weights --------------+
                                            one process and device, a thread for each

New since IMPALA: actors hold no weights. They stream observations to a server on the learner's
device, which answers many of them in one forward pass and assembles the trajectories itself.
One datum: actor -> stream -> inference -> queue [-> replay] -> learner.
Lag: the wait in the queue and the rows still to come; each row has a version of its own.
Deviation: the server waits for half of all groups, but at most `patience_seconds`: a dead actor
cannot stall the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.objectives.r2d2 import R2D2
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.roles.inference.batch_rule import BatchRule
from veldt.roles.inference.stream import CentralInference
from veldt.roles.learner import Learner
from veldt.roles.policies.local import SampleActions
from veldt.roles.policies.stream import (
    SCRATCH_STEPS,
    ScratchSink,
    StreamPolicyConfig,
    stream_layouts,
)
from veldt.roles.replay.sequences import PUBLISHED_R2D2, SequenceReplaySettings, memory_network
from veldt.settings import OptimizerSettings
from veldt.topology import Node, Topology


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
    batch_trajectories: int = 0
    """vtrace: trajectories joined into one batch; 0: one of each group, which keeps lag low."""
    groups_per_actor: int = 1
    """Groups of environments per actor; 2 hides inference behind stepping."""
    patience_seconds: float = 0.02
    """How long the server waits for half of all groups before it answers those that asked."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("vtrace", "r2d2"):
            raise ConfigurationError(f"unknown algorithm '{self.algorithm}'; use vtrace or r2d2")
        if self.algorithm == "r2d2":
            self.check_sequences(self.trajectory_steps)


PRESETS = {
    "control": Config(optimizer="rmsprop"),
    "control_r2d2": Config(algorithm="r2d2", learning_rate=1e-3, max_grad_norm=40.0),
    "atari": Config(
        learning_rate=4.8e-4,
        decay_learning_rate=True,
        adam_beta1=0.0,
        optimizer_epsilon=3.125e-7,
        max_grad_norm=0.0,
        trace_lambda=1.0,
        entropy_coefficient=2.5e-4,
        normalize_returns=False,
        trajectory_steps=100,
    ),
    "atari_r2d2": Config(algorithm="r2d2", **PUBLISHED_R2D2),
}
CENTRAL_INFERENCE = True


def default_actors(cores: int) -> int:
    return cores - 1


def build(config: Config, problem: Problem) -> Topology:
    groups, actors = config.groups_per_actor, problem.num_actors
    width, num_groups = problem.group_width(groups), groups * actors
    vtrace, scale = config.algorithm == "vtrace", config.normalize_returns
    policy_value = problem.make_network("policy_value", normalize_returns=scale)
    make_network = policy_value if vtrace else memory_network(problem)
    layout = problem.trajectory_layout(make_network(), config.trajectory_steps, width)
    request, answer = stream_layouts(layout, problem.spec.action)

    topology = Topology("seed_rl", make_network)
    stream = topology.stream("stream", request, answer, actors, groups)
    batch = config.batch_trajectories or num_groups
    trajectories = topology.queue("trajectories", layout, num_groups + 2 * batch)
    for index in range(actors):
        topology.add(
            "actor",
            Actor,
            sink=ScratchSink(layout, groups),
            policy=StreamPolicyConfig(request),
            policy_port=stream.client(index),
            num_groups=groups,
            gamma=config.gamma,
            **problem.for_actor(SCRATCH_STEPS),
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
        make_selection=SampleActions if vtrace else config.exploration(num_groups * width),
        answer=answer,
        num_steps=config.trajectory_steps,
        groups_per_client=groups,
        rule=BatchRule(max(1, num_groups // 2), num_groups, config.patience_seconds),
        device=problem.device,
    )
    if vtrace:
        source = trajectories.source(batch)
        experience = {"source": source, "make_objective": partial(ActorCritic, config=config)}
        replay: list[Node] = []
    else:
        experience, *replay = config.add_replay(topology, trajectories, problem.frame_stack)
        experience["make_objective"] = partial(R2D2, config=config)
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
