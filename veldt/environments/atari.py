# SPDX-License-Identifier: Apache-2.0
"""Atari on ale-py's vector environment, as one vector or as groups that take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from veldt.environments import lookup
from veldt.environments.opened import MODES, OpenedVector, Stepper
from veldt.environments.turns import Received, groups_of
from veldt.errors import ConfigurationError

if TYPE_CHECKING:
    from veldt.environments.factory import EnvironmentFactory


def open_atari(factory: EnvironmentFactory, options: dict[str, Any], num_envs: int) -> OpenedVector:
    arguments = atari_arguments(factory, options)
    from ale_py.vector_env import AtariVectorEnv

    return _opened(AtariVectorEnv(num_envs=num_envs, **arguments), arguments)


def open_atari_groups(
    factory: EnvironmentFactory, num_groups: int, num_envs: int
) -> list[OpenedVector] | None:
    """`num_groups` groups of `num_envs` environments that take turns on one thread; None if more
    threads are wanted."""
    arguments = atari_arguments(factory, dict(factory.options))
    if arguments["num_threads"] != 1 or "batch_size" in arguments:
        return None
    from ale_py.vector_env import AtariVectorEnv

    shared = AtariVectorEnv(num_envs=num_groups * num_envs, batch_size=num_envs, **arguments)
    return [_opened(group, arguments, stepper=group) for group in groups_of(AtariTurns(shared))]


class AtariTurns:
    """ale-py's vector, which gives actions to those environments that were received last."""

    def __init__(self, shared: Any) -> None:
        self.env, self.width = shared, shared.batch_size

    def begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def send(self, actions: np.ndarray, first: int) -> None:
        self.env.send(actions)

    def recv(self) -> Received:
        received: Received = self.env.recv()
        return received


def _opened(
    env: VectorEnv, arguments: dict[str, Any], stepper: Stepper | None = None
) -> OpenedVector:
    return OpenedVector(
        env,
        arguments["autoreset_mode"],
        frames_per_step=arguments["frameskip"],
        life_loss="continues" if arguments["life_loss_info"] else "none",
        stepper=stepper,
    )


def atari_arguments(factory: EnvironmentFactory, options: dict[str, Any]) -> dict[str, Any]:
    """The standard preprocessing: 84x84 grey, 4 frames stacked, action repeated 4 times, up to 30
    no-ops at the start. Rewards are clipped by us, so that reported returns stay raw."""
    if factory.vectorization not in ("auto", "native"):
        raise ConfigurationError(
            f"'{factory.name}' runs on ale-py's own vector environment; leave vectorization at auto"
        )
    spec = lookup.gymnasium_spec(factory.name)
    arguments: dict[str, Any] = {**spec.kwargs, "num_threads": 1, "noop_max": 30, **options}
    arguments["reward_clipping"] = False
    if factory.frame_stack > 1:
        arguments["stack_num"] = factory.frame_stack
    if factory.time_limit is not None:
        arguments["max_num_frames_per_episode"] = factory.time_limit * arguments["frameskip"]
    # ale-py's episodic_life restarts the whole game at each lost life, so that later lives would
    # never be seen; life_loss_info only marks the end.
    life_loss = bool(arguments.pop("episodic_life", False))
    arguments["life_loss_info"] = life_loss
    arguments["autoreset_mode"] = MODES.get(factory.autoreset, AutoresetMode.NEXT_STEP)
    if arguments["autoreset_mode"] == AutoresetMode.DISABLED:
        raise ConfigurationError("ale-py always resets by itself; use autoreset same_step instead")
    return arguments
