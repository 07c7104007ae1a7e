# SPDX-License-Identifier: Apache-2.0
"""Sample Factory (Petrenko et al., 2020).

    actor x N ==rows==> requests --> policy worker x M <-- weights --+
       |    <==actions, in the same rows==                           |
       +------ slot numbers ------> queue --batch--> learner --------+

New since SEED RL: one machine, so nothing is sent at all. Observations are written once into shared
slots; queues carry slot and row numbers. Each actor has two groups of environments and steps one
while the policy workers answer for the other (double buffering). The loss is PPO's clip on V-trace
targets.
One datum: actor -> slot -> policy worker -> slot -> learner.
Lag: weights may change between two rows; each row knows its version, and rows beyond
`max_policy_lag` are masked out of the loss while the learning rate shrinks with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from veldt.objectives.appo import Appo, AppoSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.batch_rule import BatchRule
from veldt.roles.batched_policy import state_size
from veldt.roles.gradients import LocalOptimizerConfig
from veldt.roles.inference_server import InferenceServer
from veldt.roles.learner import Learner
from veldt.roles.policy import SampleActions
from veldt.roles.remote_policy import RemotePolicyConfig
from veldt.settings import OptimizerSettings
from veldt.topology import Topology
from veldt.types import Field

BACKENDS = ("serial", "process")
WHY_NOT_EVERYWHERE = (
    "sample_factory lives in the shared memory of one machine and cannot run on ray;"
    " use --backend process, or seed_rl for a cluster"
)


@dataclass(frozen=True)
class Config(AppoSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    optimizer: str = "rmsprop"
    learning_rate: float = 3e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    entropy_coefficient: float = 0.01
    normalize_returns: bool = True
    ppo_clip: float = 0.2
    trajectory_steps: int = 16
    """Environment steps per trajectory."""
    batch_trajectories: int = 2
    """Trajectories (of one group each) joined into one batch."""
    groups_per_actor: int = 2
    """Groups of environments per actor; 2 hides inference behind stepping."""
    num_policy_workers: int = 1
    """Inference servers of the policy."""
    enough_requests: int = 1
    """Requests that start a forward pass at once."""
    patience_seconds: float = 0.0
    """How long a policy worker waits for enough requests."""


PRESETS = {
    "control": Config(),
    "atari": Config(
        optimizer="adam",
        learning_rate=1e-4,
        optimizer_epsilon=1e-6,
        max_grad_norm=4.0,
        trace_lambda=1.0,
        entropy_coefficient=0.001,
        normalize_returns=False,
        ppo_clip=0.1,
        trajectory_steps=32,
        batch_trajectories=4,
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1


def build(config: Config, problem: Problem) -> Topology:
    groups, actors = config.groups_per_actor, problem.num_actors
    width = problem.group_width(groups)
    make_network = problem.make_network("policy_value", normalize_returns=config.normalize_returns)
    network = make_network()
    layout = problem.trajectory_layout(
        network, config.trajectory_steps, width, behaviour_value=Field((), "float32")
    )
    initial = problem.initial_weights(make_network)

    topology = Topology("sample_factory", make_network)
    # Two batches on their way is where collection pauses: more would only grow old.
    num_slots = 2 * config.batch_trajectories + groups * actors
    slots = topology.queue("slots", layout, num_slots)
    requests = topology.ask_about("requests", slots, num_clients=actors)
    weights = topology.board("weights", initial.vector, version=initial.version)
    memory = np.zeros(max(1, state_size(network, groups * actors, width)), np.float32)
    recurrent = topology.share("recurrent_state", memory)
    for index in range(actors):
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            num_groups=groups,
            sink=slots.sink,
            policy=RemotePolicyConfig(problem.spec.action, problem.network.distribution),
            policy_port=requests.client(index),
            gamma=config.gamma,
        )
    for _ in range(config.num_policy_workers):
        topology.add(
            "policy_worker",
            InferenceServer,
            requests=requests.server,
            parameters=weights.source(),
            make_network=make_network,
            group_width=width,
            groups_per_client=groups,
            rule=BatchRule(config.enough_requests, groups * actors, config.patience_seconds),
            state=recurrent.end,
            make_selection=partial(SampleActions, keep_value=True),
            device=problem.device,
        )
    topology.add(
        "learner",
        Learner,
        source=slots.source(config.batch_trajectories),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(Appo, config=config),
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
        device=problem.device,
        torch_threads=problem.learner_threads,
    )
    return topology
