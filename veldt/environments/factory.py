# SPDX-License-Identifier: Apache-2.0
"""Describes an environment once, so that any process can make as many copies as it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from veldt.environments import lookup, spaces
from veldt.environments.adapters import open_vector
from veldt.environments.atari import open_atari_groups
from veldt.environments.parameters import Accepted
from veldt.environments.resilience import EnvironmentFailure
from veldt.environments.spaces import MaskReader, joined_mask, stacked
from veldt.environments.vector import OpenedVector, VectorEnvironment
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec, EnvironmentSpec

_CHOICES = {
    "vectorization": ("auto", "native", "in_process", "subprocess"),
    "autoreset": ("default", "next_step", "same_step", "disabled"),
}
_LARGEST_SEED = 2**31 - 1  # ale-py and EnvPool take 32-bit seeds


@dataclass(frozen=True)
class Interface:
    """The spaces of one environment, as Gymnasium has them."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    mask_in_observation: bool = False
    frame_stack: int = 1
    """How many observations are joined into a network's input."""


@dataclass(frozen=True)
class _Reading:
    """Facts that were read from one instance."""

    spec: EnvironmentSpec
    interface: Interface
    mask_in_info: bool
    is_native: bool
    accepted: Accepted | None = None


@dataclass(frozen=True)
class EnvironmentFactory:
    """Picklable description of an environment, which node processes receive at start.

    Args:
        env: Gymnasium id, "ALE/...", "envpool:<task>", "module:function", a game of several players
            ("veldt:<game>", "pettingzoo:<module>"), simulators that connect to a run
            ("external:HOST:PORT"), or a picklable callable that returns a gymnasium.Env (or a
            gymnasium VectorEnv, if it takes num_envs).
        options: Keyword arguments of the environment, as a mapping or as pairs.
        vectorization: auto | native | in_process | subprocess. auto: the native vector environment
            where one is registered and offers the wanted autoreset mode, else in_process.
        autoreset: default | next_step | same_step | disabled (Veldt resets; seen as same_step).
        frame_stack: How many of the last observations are joined into one. ALE/ ids stack 4 unless
            more than 1 is given; EnvPool's Atari has its own option stack_num instead.
        time_limit: Env steps after which an episode is truncated.
        reward_clip: Bound of rewards in training, [-c, c]; reported returns are not clipped.
    """

    env: str | Callable[..., object]
    options: tuple[tuple[str, Any], ...] = ()
    vectorization: str = "auto"
    autoreset: str = "default"
    frame_stack: int = 1
    time_limit: int | None = None
    reward_clip: float | None = None
    _read: _Reading | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.options, Mapping):
            object.__setattr__(self, "options", tuple(self.options.items()))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigurationError(
                    f"unknown {name} '{getattr(self, name)}'; use {', '.join(choices)}"
                )
        if self.frame_stack < 1:
            raise ConfigurationError(f"frame_stack is {self.frame_stack}; use 1 or more")
        if self.time_limit is not None and self.time_limit < 1:
            raise ConfigurationError(f"time_limit is {self.time_limit}; use 1 step or more")
        if self.reward_clip is not None and not self.reward_clip > 0:
            raise ConfigurationError(f"reward_clip is {self.reward_clip}; use a positive bound")

    @property
    def name(self) -> str:
        """The id, or where the callable is defined."""
        if isinstance(self.env, str):
            return self.env
        function = getattr(self.env, "func", self.env)
        return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"

    @property
    def is_atari(self) -> bool:
        return isinstance(self.env, str) and self.env.startswith(lookup.ATARI_PREFIX)

    @property
    def is_envpool(self) -> bool:
        return isinstance(self.env, str) and self.env.startswith(lookup.ENVPOOL_PREFIX)

    @property
    def is_game(self) -> bool:
        """Whether it has several players, each with a column of its own."""
        return isinstance(self.env, str) and self.env.startswith(lookup.GAME_PREFIXES)

    @property
    def is_external(self) -> bool:
        """Whether simulators in other processes step it and connect to the run."""
        return isinstance(self.env, str) and self.env.startswith(lookup.EXTERNAL_PREFIX)

    @property
    def is_native(self) -> bool:
        """Whether many copies are stepped by one vectorised implementation."""
        return self._reading().is_native

    def spec(self) -> EnvironmentSpec:
        """Shapes and kinds, read once from an instance; cached and pickled."""
        return self._reading().spec

    def interface(self) -> Interface:
        """The Gymnasium spaces; cached like `spec`."""
        return self._reading().interface

    @property
    def parameters(self) -> Accepted | None:
        """Arguments of its set_parameters; None without that method."""
        return self._reading().accepted

    def with_known_spec(self, spec: EnvironmentSpec, interface: Interface) -> EnvironmentFactory:
        """A copy that knows its spec, so that no instance is made to read it."""
        known = replace(self)
        object.__setattr__(known, "_read", _Reading(spec, interface, False, False))
        return known

    def with_reward_clip(self, bound: float) -> EnvironmentFactory:
        """A copy with `reward_clip`, which does not affect the spec."""
        clipped = replace(self, reward_clip=bound)
        object.__setattr__(clipped, "_read", self._read)
        return clipped

    def make(self, num_envs: int, seed: int, render: bool = False) -> VectorEnvironment:
        """Make a vector of environments; the same seed gives the same episodes.

        Args:
            num_envs: How many environments.
            seed: Seed of the first environment.
            render: Whether `render()` will be called.
        """
        if num_envs < 1:
            raise ConfigurationError(f"num_envs is {num_envs}; use 1 or more")
        reading, seed = self._reading(), seed % (_LARGEST_SEED - num_envs)
        return self._over(reading, open_vector(self, num_envs, seed, render), seed)

    def wrapping(self, env: VectorEnv, seed: int) -> VectorEnvironment:
        """Wrap a vector environment over this game that has one column of decisions per game."""
        seed = seed % (_LARGEST_SEED - env.num_envs)
        opened = OpenedVector(env, AutoresetMode(env.metadata["autoreset_mode"]))
        reading = self._reading()
        one_column = replace(reading, spec=replace(reading.spec, rows_per_env_step=1))
        return self._over(one_column, opened, seed)

    def make_groups(
        self, num_groups: int, num_envs: int, seed: int
    ) -> list[VectorEnvironment] | None:
        """Groups of `num_envs` environments that alternate on one thread; None except for Atari."""
        seed = seed % (_LARGEST_SEED - num_groups * num_envs)
        groups = open_atari_groups(self, num_groups, num_envs) if self.is_atari else None
        if groups is None:
            return None
        return [self._over(self._reading(), opened, seed) for opened in groups]

    def _over(self, reading: _Reading, opened: OpenedVector, seed: int) -> VectorEnvironment:
        spec, mask = reading.spec, None
        if spec.action_mask_size:
            mask = MaskReader(spec.action, opened.env.num_envs, reading.mask_in_info)
        return VectorEnvironment(
            opened,
            spec,
            spaces.leaf_readers(opened.env.single_observation_space, mask is not None),
            mask,
            seed,
            self._stack_depth,
            self.reward_clip,
        )

    @property
    def _stack_depth(self) -> int:
        return 1 if self.is_atari else self.frame_stack

    def _in_this_process(self) -> EnvironmentFactory:
        if self.vectorization != "subprocess":
            return self
        return replace(self, vectorization="in_process")

    def _reading(self) -> _Reading:
        if self._read is None:
            opened = open_vector(self._in_this_process(), num_envs=1, seed=0)
            try:
                object.__setattr__(self, "_read", self._read_from(opened))
            except EnvironmentFailure as error:
                raise ConfigurationError(str(error)) from error
            finally:
                opened.env.close()
        assert self._read is not None
        return self._read

    def _read_from(self, opened: OpenedVector) -> _Reading:
        env = opened.env
        action = spaces.action_spec(env.single_action_space)
        observation_space = env.single_observation_space
        is_native = not isinstance(env, SyncVectorEnv)
        in_observation = in_info = False
        mask: np.ndarray | None = None
        if action.kind != "box" or not is_native:
            observation, info = env.reset() if opened.seeded else env.reset(seed=0)
        if action.kind != "box":
            entries = getattr(observation_space, "spaces", {})
            in_observation = isinstance(entries, Mapping) and ACTION_MASK in entries
            in_info = not in_observation and ACTION_MASK in info
            if in_observation or in_info:
                masks = observation[ACTION_MASK] if in_observation else info[ACTION_MASK]
                one = tuple(part[0] for part in masks) if isinstance(masks, tuple) else masks[0]
                mask = joined_mask(sum(action.sizes), one)
        if not is_native:
            _try_step(opened, action, mask)
        readers = spaces.leaf_readers(observation_space, in_observation)
        spec = EnvironmentSpec(
            id=self.name,
            observation=tuple(stacked(reader.leaf, self._stack_depth) for reader in readers),
            action=action,
            action_mask_size=0 if mask is None else mask.size,
            same_step_reset=opened.autoreset != AutoresetMode.NEXT_STEP,
            frames_per_step=opened.frames_per_step,
            rows_per_env_step=opened.rows_per_env_step,
        )
        interface = Interface(
            observation_space, env.single_action_space, in_observation, self._stack_depth
        )
        one_by_one = not is_native or self.name.startswith(lookup.PETTINGZOO_GAMES)
        return _Reading(spec, interface, in_info, not one_by_one, Accepted.by(env))


@dataclass(frozen=True)
class Environments:
    """The environments of one actor, in groups of equal width that it steps one after the other."""

    factory: EnvironmentFactory
    num_envs: int
    num_groups: int = 1

    @property
    def width(self) -> int:
        return self.num_envs // self.num_groups


def _try_step(opened: OpenedVector, action: ActionSpec, mask: np.ndarray | None) -> None:
    """One step, so that environments of an older interface are refused before a run starts."""
    allowed = None if mask is None else mask[None].astype(bool)
    drawn = spaces.random_actions(action, 1, np.random.default_rng(0), allowed)
    offset = spaces.action_offset(opened.env.single_action_space)
    opened.env.step(drawn if offset is None else drawn + offset)
