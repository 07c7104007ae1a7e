# SPDX-License-Identifier: Apache-2.0
"""Atari on ale-py's vector environment, and the rules under which a score was made."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from veldt.environments import lookup
from veldt.environments.vector import OpenedVector

if TYPE_CHECKING:
    from veldt.environments.factory import EnvironmentFactory


def open_atari(factory: EnvironmentFactory, options: dict[str, Any], num_envs: int) -> OpenedVector:
    arguments = atari_arguments(factory, options)
    from ale_py.vector_env import AtariVectorEnv

    return _opened(AtariVectorEnv(num_envs=num_envs, **arguments), arguments)


def open_atari_groups(
    factory: EnvironmentFactory, num_groups: int, num_envs: int
) -> list[OpenedVector] | None:
    """Groups of `num_envs` environments that alternate on one thread; None for several threads."""
    arguments = atari_arguments(factory, dict(factory.options))
    if arguments["num_threads"] != 1 or "batch_size" in arguments:
        return None
    from ale_py.vector_env import AtariVectorEnv

    shared = AtariVectorEnv(num_envs=num_groups * num_envs, batch_size=num_envs, **arguments)
    groups = [AlternatingGroup(shared, index) for index in range(num_groups)]
    return [_opened(group, arguments, in_halves=True) for group in groups]


class AlternatingGroup(VectorEnv):
    """Group `index` of a vector whose one thread steps a group while a policy acts for another.

    With a thread per group, each step would wake one. The order is reset 0, send 0, reset 1,
    send 1, recv 0, send 0, recv 1, ...: ale-py sends actions to the group that was received last.
    """

    def __init__(self, shared: Any, index: int) -> None:
        self._shared, self._index = shared, index
        self.num_envs = shared.batch_size
        self.single_observation_space = shared.single_observation_space
        self.single_action_space = shared.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self._index:  # the first group's reset has started it
            observation, *_, info = self.recv()
            return observation, info
        return self._shared.reset(seed=seed)

    def send(self, actions: np.ndarray) -> None:
        self._shared.send(actions)

    def recv(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        return self._shared.recv()

    def close(self, **_: Any) -> None:
        self._shared.close()


def _opened(env: VectorEnv, arguments: dict[str, Any], in_halves: bool = False) -> OpenedVector:
    return OpenedVector(
        env,
        AutoresetMode.NEXT_STEP,
        frames_per_step=arguments["frameskip"],
        life_loss="continues" if arguments["life_loss_info"] else "none",
        in_halves=in_halves,
    )


def atari_arguments(factory: EnvironmentFactory, options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ale-py: the standard preprocessing and the user's options.

    84x84 grey, 4 frames stacked, action repeated 4 times, up to 30 no-ops at the start. Veldt clips
    rewards itself, so that reported returns stay raw."""
    spec = lookup.gymnasium_spec(factory.name)
    arguments: dict[str, Any] = {**spec.kwargs, "num_threads": 1, "noop_max": 30, **options}
    arguments["reward_clipping"] = False
    if factory.frame_stack > 1:
        arguments["stack_num"] = factory.frame_stack
    if factory.time_limit is not None:
        arguments["max_num_frames_per_episode"] = factory.time_limit * arguments["frameskip"]
    # ale-py's episodic_life restarts the whole game at each lost life, so that agents would never
    # see later lives; life_loss_info only marks the end.
    life_loss = bool(arguments.pop("episodic_life", False))
    arguments["life_loss_info"] = life_loss
    arguments["autoreset_mode"] = AutoresetMode.NEXT_STEP
    return arguments


@dataclass(frozen=True)
class AtariRules:
    """How one game is trained and evaluated, without which a score says little."""

    game: str
    sticky_actions: float
    """Probability that the last action is repeated instead of the chosen one."""
    frames_per_step: int
    max_frames: int
    """Frames after which a game is truncated."""
    life_loss_ends: bool
    """Whether a lost life ended an episode in training. Evaluation plays whole games."""
    reward_clip: float | None
    """Bound of rewards in training. Evaluation does not clip."""

    def text(self) -> str:
        lives = "a lost life ended an episode" if self.life_loss_ends else "whole games"
        clip = "rewards as they are"
        if self.reward_clip is not None:
            clip = f"rewards clipped to {self.reward_clip:g}"
        return (
            f"whole games of at most {self.max_frames:,} frames, {self.frames_per_step} a step,"
            f" sticky actions {self.sticky_actions:g}, rewards as they are;"
            f" trained with {lives} and {clip}"
        )

    def human_normalized(self, score: float) -> float | None:
        """0 is a random player and 1 a human; None for a game without reference scores."""
        known = reference_scores().get(self.game)
        if known is None:
            return None
        random, human = known
        return (score - random) / (human - random)


def atari_rules(factory: EnvironmentFactory) -> AtariRules | None:
    """The rules of an ALE/ id; None for any other environment."""
    if not factory.is_atari:
        return None
    arguments = atari_arguments(factory, dict(factory.options))
    return AtariRules(
        game=lookup.gymnasium_spec(factory.name).kwargs["game"],
        sticky_actions=arguments["repeat_action_probability"],
        frames_per_step=arguments["frameskip"],
        max_frames=arguments["max_num_frames_per_episode"],
        life_loss_ends=arguments["life_loss_info"],
        reward_clip=factory.reward_clip,
    )


@cache
def reference_scores() -> dict[str, list[float]]:
    """Scores of a random player and of a human, by game; for MinAtar of PPO instead of a human."""
    file = resources.files("veldt.environments").joinpath("reference_scores.toml")
    return tomllib.loads(file.read_text("utf-8"))
