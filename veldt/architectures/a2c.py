# SPDX-License-Identifier: Apache-2.0
"""A2C: A3C made synchronous (Mnih et al., 2016; the batched form is folklore since 2017).

    actor x N --trajectories--> queue --one of each--> learner
       ^                                                  |
       +------ weights: no trajectory starts without -----+

New since A3C: a barrier. Every actor waits until the learner has learned from all of them, so each
gradient is on-policy and the result does not depend on timing.
One datum: actor -> queue -> learner.
Lag: 0 by construction; the price is that each round takes as long as its slowest actor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.objectives.ppo import PPO, PPOSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policies.local import LocalPolicyConfig, SampleActions
from veldt.settings import OptimizerSettings
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(PPOSettings, ActorCriticSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    epochs: int = 1
    minibatches: int = 1
    normalize_values: bool = False
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    correction: str = "none"
    optimizer: str = "rmsprop"
    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory, and so per update."""
    environments: int = 0
    """Environments of all actors together, which with trajectory_steps fixes the rows per update;
    0: from a quick measurement."""
    noise_exponent: float = 0.0
    """Color of the noise on Box actions; 0: white, 0.5: between white and pink."""
    normalize_inputs: bool = False
    """Scale vector observations by statistics shared by all actors."""
    barrier: str = "trajectory"
    """trajectory: actors wait for each other before each update. step: one policy for all
    environments, which wait for each other at every step (use --vectorization subprocess)."""

    def __post_init__(self) -> None:
        if self.barrier not in ("trajectory", "step"):
            raise ConfigurationError(f"unknown barrier '{self.barrier}'; use trajectory or step")


_PPO = Config(
    epochs=4,
    minibatches=8,
    optimizer="adam",
    learning_rate=1e-3,
    max_grad_norm=1.0,
    value_coefficient=1.0,
    normalize_returns=False,
    normalize_values=True,
    normalize_inputs=True,
    environments=32,
    trajectory_steps=64,
)
PRESETS = {
    "control": Config(),
    "vectors": _PPO,
    "continuous": replace(_PPO, epochs=5, entropy_coefficient=0.0),
    "small_images": _PPO,
    "atari": Config(
        trajectory_steps=5,
        trace_lambda=1.0,
        normalize_returns=False,
        max_grad_norm=0.5,
        learning_rate=7e-4,
        decay_learning_rate=True,
        # 0.5 before a plain square in the published loss is 1.0 before half a square.
        value_coefficient=1.0,
    ),
}


def default_actors(cores: int) -> int:
    return cores  # while the learner works, they all wait


def build(config: Config, problem: Problem) -> Topology:
    make_network = problem.make_network(
        "policy_value",
        normalize_returns=config.normalize_returns,
        normalize_values=config.normalize_values,
        normalize_observations=config.normalize_inputs or problem.network.normalize_observations,
    )
    objective = PPO if config.epochs * config.minibatches > 1 else ActorCritic
    step_barrier = config.barrier == "step"
    num_actors = 1 if step_barrier else problem.num_actors
    num_envs = problem.num_actors * problem.envs_per_actor // num_actors
    layout = problem.trajectory_layout(make_network(), config.trajectory_steps, num_envs)
    initial = problem.initial_weights(make_network)

    topology = Topology("a2c", make_network)
    trajectories = topology.queue("trajectories", layout, num_actors)
    weights = topology.board("weights", initial.vector, version=initial.version)
    actors = [
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=num_envs,
            num_steps=config.trajectory_steps,
            sink=trajectories.sink,
            policy=LocalPolicyConfig(
                make_network, partial(SampleActions, noise_exponent=config.noise_exponent)
            ),
            policy_port=weights.source(),
            synchronous=True,
            gamma=config.gamma,
        )
        for _ in range(num_actors)
    ]
    learner = topology.add(
        "learner",
        Learner,
        source=trajectories.source(slots_per_batch=num_actors),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(objective, config=config),
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
        device=problem.device,
        torch_threads=problem.learner_threads,
    )
    if step_barrier:
        topology.colocate(*actors, learner)  # they never work at the same time
    return topology
