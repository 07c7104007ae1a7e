# SPDX-License-Identifier: Apache-2.0
"""Sample Factory (Petrenko et al., 2020).

    actor x N ==rows==> requests --> policy worker x M <-- weights --+
       |    <==actions, in the same rows==                           |
       +------ slot numbers ------> queue --batch--> learner --------+

New since SEED RL: one machine, so nothing is sent. Observations are written once into shared slots;
queues carry slot and row numbers. An actor steps one of its two groups of environments while policy
workers answer for the other (double buffering). The loss is PPO's clip on V-trace targets.
One datum: actor -> slot -> policy worker -> slot -> learner.
Several policies (`num_policies`) have workers and learners of their own, play whole episodes, and
are trained as a population: the worst go on from the best's weights, population.jsonl tells.
Lag: weights may change between two rows; each row knows its version, and rows beyond
`max_policy_lag` are masked out of the loss while the learning rate shrinks with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from veldt.objectives.appo import Appo, AppoSettings
from veldt.objectives.ppo import PPO, PPOSettings
from veldt.population.settings import MixedPopulationSettings
from veldt.population.wiring import Population
from veldt.problem import Problem
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.roles.inference.batch_rule import BatchRule
from veldt.roles.inference.batched_policy import state_size
from veldt.roles.inference.shared_memory import InferenceServer
from veldt.roles.policies.local import SampleActions
from veldt.topology import Topology
from veldt.types import Field

BACKENDS = ("serial", "process")
WHY_NOT_EVERYWHERE = (
    "sample_factory lives in the shared memory of one machine and cannot run on ray;"
    " use --backend process, or seed_rl for a cluster"
)


@dataclass(frozen=True)
class Config(PPOSettings, AppoSettings, MixedPopulationSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    epochs: int = 1
    minibatches: int = 1
    normalize_values: bool = False
    optimizer: str = "rmsprop"
    learning_rate: float = 3e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    entropy_coefficient: float = 0.01
    normalize_returns: bool = True
    ppo_clip: float = 0.2
    trajectory_steps: int = 16
    """Environment steps per trajectory."""
    environments: int = 0
    """Environments of all actors together; 0: from a quick measurement."""
    normalize_inputs: bool = False
    """Scale vector observations by statistics shared by all actors."""
    batch_trajectories: int = 2
    """Trajectories (of one group each) joined into one batch."""
    synchronous: bool = False
    """Wait for the update after each trajectory; a batch is one of each group, and lag is 0."""
    groups_per_actor: int = 2
    """Groups of environments per actor; 2 hides inference behind stepping."""
    num_policy_workers: int = 1
    """Inference servers of each policy."""
    enough_requests: int = 1
    """Requests that start a forward pass at once."""
    patience_seconds: float = 0.0
    """How long a policy worker waits for enough requests."""


_PPO = Config(
    epochs=4,
    minibatches=8,
    optimizer="adam",
    learning_rate=1e-3,
    max_grad_norm=1.0,
    normalize_returns=False,
    normalize_values=True,
    normalize_inputs=True,
    value_clip=0.0,
    environments=32,
    trajectory_steps=64,
)
PRESETS = {
    "control": Config(),
    "vectors": _PPO,
    "continuous": replace(_PPO, epochs=5, entropy_coefficient=0.0),
    "small_images": _PPO,
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
        pbt_start_env_steps=20_000_000,
        pbt_period_env_steps=5_000_000,
    ),
}
CENTRAL_INFERENCE = True


def default_actors(cores: int) -> int:
    return cores - 1


def build(config: Config, problem: Problem) -> Topology:
    groups, actors, steps = config.groups_per_actor, problem.num_actors, config.trajectory_steps
    width = problem.group_width(groups)
    make_network = problem.make_network(
        "policy_value",
        normalize_returns=config.normalize_returns,
        normalize_values=config.normalize_values,
        normalize_observations=config.normalize_inputs or problem.network.normalize_observations,
    )
    objective = PPO if config.epochs * config.minibatches > 1 else Appo
    network = make_network()
    layout = problem.trajectory_layout(network, steps, width, behaviour_value=Field((), "float32"))

    topology = Topology("sample_factory", make_network)
    population = Population(topology, config, problem, make_network)
    batch = groups * actors if config.synchronous else config.batch_trajectories
    # Two batches on their way is where collection pauses: more would only grow old.
    slots = topology.queue("slots", population.trajectories(layout), 2 * batch + groups * actors)
    requests = [topology.ask_about(name, slots, actors) for name in population.names("requests")]
    recurrent = state_size(network, groups * actors, width)
    memory = topology.share("recurrent_state", np.zeros(max(1, recurrent), np.float32))
    for index in range(actors):
        topology.add(
            "actor",
            population.actor,
            num_groups=groups,
            sink=slots.sink,
            gamma=config.gamma,
            **population.asking(requests, index, config.synchronous),
            **population.for_actor(steps),
        )
    for policy, _ in product(range(population.size), range(config.num_policy_workers)):
        topology.add(
            "policy_worker",
            InferenceServer,
            requests=requests[policy].server,
            parameters=population.weights[policy].source(),
            make_network=make_network,
            group_width=width,
            groups_per_client=groups,
            rule=BatchRule(config.enough_requests, groups * actors, config.patience_seconds),
            state=memory.end,
            make_selection=partial(SampleActions, keep_value=True),
            make_policy=population.acting(policy),
            device=problem.device,
        )
    decay = population.decay_env_steps(config.decay_learning_rate)
    for policy, source in enumerate(population.sorted(slots, batch)):
        topology.add(
            "learner",
            population.learner,
            source=source,
            weights=population.weights[policy].sink,
            initial=population.weights[policy].source(),
            make_network=make_network,
            make_objective=partial(objective, config=config),
            gradients=LocalOptimizerConfig(config.optimizer_config()),
            **population.for_learner(policy, decay),
        )
    population.add_controller()
    return topology
