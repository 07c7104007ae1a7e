# SPDX-License-Identifier: Apache-2.0
"""SEED RL (Espeholt et al., 2020), with V-trace.

    actor x N ==observations==> stream ==> inference --trajectories--> queue --> learner
        <==actions, one stream per actor==     ^                                    |
                                               +------------- weights --------------+
                                                 one process, one device, two threads

New since IMPALA: actors hold no weights. They stream observations to a server on the learner's device,
which answers many of them in one forward pass and assembles the trajectories itself.
One datum: actor -> stream -> inference -> queue -> learner.
Lag: only the wait in the queue and the rows still to come; weights may change between any two rows,
so each row keeps its version and behaviour logits.
Deviation: a server waits for half of all groups at most `patience_seconds`, so that a dead actor
cannot stall the others; SEED waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.batch_rule import BatchRule
from veldt.roles.central_inference import CentralInference
from veldt.roles.gradients import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.stream_policy import (
    ScratchSink,
    StreamPolicyConfig,
    answer_layout,
    request_layout,
)
from veldt.settings import OptimizerSettings
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(ActorCriticSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory."""
    batch_trajectories: int = 1
    """Trajectories (of one group each) joined into one batch."""
    groups_per_actor: int = 1
    """Groups of environments per actor; 2 hides inference behind stepping."""
    patience_seconds: float = 0.02
    """How long the server waits for half of all groups before it answers those that asked."""


PRESETS = {
    "control": Config(),
}


def default_actors(cores: int) -> int:
    return cores - 1


def build(config: Config, problem: Problem) -> Topology:
    groups, actors = config.groups_per_actor, problem.num_actors
    width = problem.envs_per_actor // groups
    make_network = problem.make_network(
        "policy_value", normalize_returns=config.normalize_returns
    )
    layout = problem.trajectory_layout(make_network(), config.trajectory_steps, width)
    initial = problem.initial_weights(make_network)
    request, answer = request_layout(layout), answer_layout(problem.spec.action, width)

    topology = Topology("seed_rl", make_network)
    stream = topology.stream("stream", request, answer, actors, groups)
    num_slots = 2 * config.batch_trajectories + groups * actors
    trajectories = topology.queue("trajectories", layout, num_slots)
    weights = topology.board("weights", initial.vector, version=initial.version)
    for index in range(actors):
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            num_groups=groups,
            sink=ScratchSink(layout, groups),
            policy=StreamPolicyConfig(request),
            policy_port=stream.client(index),
            gamma=config.gamma,
        )
    server = topology.add(
        "inference",
        CentralInference,
        stream=stream.server,
        sink=trajectories.sink,
        parameters=weights.source(),
        make_network=make_network,
        answer=answer,
        num_steps=config.trajectory_steps,
        group_width=width,
        num_groups=groups * actors,
        groups_per_client=groups,
        rule=BatchRule(max(1, groups * actors // 2), groups * actors, config.patience_seconds),
        device=problem.device,
    )
    learner = topology.add(
        "learner",
        Learner,
        source=trajectories.source(config.batch_trajectories),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(ActorCritic, config=config),
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
        device=problem.device,
        torch_threads=problem.learner_threads,
    )
    topology.colocate(server, learner, threads=True)
    return topology
