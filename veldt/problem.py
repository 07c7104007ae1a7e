# SPDX-License-Identifier: Apache-2.0
"""What is to be learned and with how much machine: what no architecture decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, Network, NetworkConfig, make_network
from veldt.types import (
    DISCOUNTED_RETURN,
    EnvironmentSpec,
    Field,
    Layout,
    Parameters,
    trajectory_layout,
)


@dataclass(frozen=True)
class Problem:
    """An environment, a network for it, and the size of the run."""

    environment: EnvironmentFactory
    spec: EnvironmentSpec
    network: NetworkConfig
    seed: int = 0
    num_actors: int = 1
    envs_per_actor: int = 8
    device: str = "cpu"
    learner_threads: int = 1
    total_env_steps: int | None = None
    restored: Parameters | None = None
    """Weights to start from instead of fresh ones."""

    def make_network(self, head: str, **changes: object) -> Callable[[], Network]:
        """A picklable factory; every call builds the same weights from the seed."""
        config = replace(self.network, **changes)  # type: ignore[arg-type]
        return partial(make_network, config, self.spec, head, self.seed)

    def initial_weights(self, factory: Callable[[], Network]) -> Parameters:
        if self.restored is not None:
            return self.restored
        return Parameters(FlatParameters(factory()).numpy(), 0)

    def trajectory_layout(
        self, network: Network, num_steps: int, num_envs: int, **extra: Field
    ) -> Layout:
        """Slots for `num_steps` of `num_envs` environments with what the network's actors store."""
        outputs = {**network.output_fields(), **network.input_fields(), **extra}
        if network.return_moments is not None:
            outputs[DISCOUNTED_RETURN] = Field((), "float32")
        return trajectory_layout(self.spec, num_steps, num_envs, outputs, network.state_fields())

    @property
    def frame_stack(self) -> int:
        """How many frames an image observation joins; a replay keeps each of them once."""
        environment = self.environment
        if environment.is_atari and environment.frame_stack == 1:
            return int(dict(environment.options).get("stack_num", 4))
        return environment.frame_stack

    def group_width(self, groups_per_actor: int) -> int:
        """Environments that an actor steps together when it takes turns among its groups."""
        if self.envs_per_actor % groups_per_actor:
            raise ConfigurationError(
                f"{self.envs_per_actor} environments per actor do not split into"
                f" {groups_per_actor} equal groups; choose a multiple with --envs-per-actor, or"
                " other --groups-per-actor"
            )
        return self.envs_per_actor // groups_per_actor

    def for_actor(self, num_steps: int) -> dict[str, Any]:
        """Arguments of every actor."""
        return {
            "environment": self.environment,
            "num_envs": self.envs_per_actor,
            "num_steps": num_steps,
        }

    def for_learner(self, decay_learning_rate: bool) -> dict[str, Any]:
        """Arguments of every learner."""
        return {
            "total_env_steps": self.total_env_steps if decay_learning_rate else None,
            "device": self.device,
            "torch_threads": self.learner_threads,
        }

    def require_action_kind(self, architecture: str, *kinds: str) -> None:
        if self.spec.action.kind not in kinds:
            raise ConfigurationError(
                f"{architecture} needs {' or '.join(kinds)} actions, but {self.spec.id} has"
                f" {self.spec.action.kind} actions; try impala, which takes any"
            )
