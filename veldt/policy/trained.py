# SPDX-License-Identifier: Apache-2.0
"""A trained policy outside its run: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.environments import Interface
from veldt.environments.spaces import (
    FrameStack,
    LeafReader,
    Path,
    action_offset,
    joined_mask,
    leaf_readers,
)
from veldt.errors import ConfigurationError
from veldt.networks import Memory, NetworkFactory, Player
from veldt.policy.module import PolicyModule
from veldt.types import ACTION_MASK, ActionSpec, ObservationLeaf, Parameters

Observation: TypeAlias = "np.ndarray | float | Mapping[str, Observation] | tuple[Observation, ...]"
"""What an environment's step returns, or a batch of that."""
Action: TypeAlias = "np.ndarray | np.integer"
"""As the environment's step takes it."""


@dataclass(frozen=True)
class Entry:
    """One array of an observation, as environments return it."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    origin: np.ndarray
    """A valid value of that shape."""
    readers: tuple[LeafReader, ...]

    def array(self, observation: Any) -> np.ndarray:
        for key in self.path:
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ConfigurationError(
                    f"the observation has no entry {key!r}, which the policy was trained with"
                ) from error
        return np.asarray(observation)

    def rows(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The leaves [N, ...] by name in an array [N, ...]."""
        return {reader.leaf.name: _typed(reader, array) for reader in self.readers}


class ObservationReader:
    """Reads observations and masks of an environment with these spaces."""

    def __init__(self, interface: Interface) -> None:
        space = interface.observation_space
        readers = leaf_readers(space, interface.mask_in_observation)
        paths = dict.fromkeys(reader.path for reader in readers)
        self.entries = tuple(
            Entry(
                ".".join(map(str, ("observation", *path))),
                path,
                _at(space, path).shape or (),
                str(_at(space, path).dtype),
                _origin(_at(space, path)),
                tuple(reader for reader in readers if reader.path == path),
            )
            for path in paths
        )
        self._mask_in_observation = interface.mask_in_observation

    def read(self, observation: Any) -> tuple[dict[str, np.ndarray], bool]:
        """Leaves [N, ...] by name, and whether a batch was given."""
        rows: dict[str, np.ndarray] = {}
        width: int | None = -1
        for entry in self.entries:
            array = entry.array(observation)
            if array.shape == entry.shape:
                found, array = None, array[None]
            elif array.shape[1:] == entry.shape and array.ndim == len(entry.shape) + 1:
                found = array.shape[0]
            else:
                raise ConfigurationError(
                    f"the {entry.name} has shape {array.shape}, but the policy was trained with"
                    f" {entry.shape}; give one observation, or a batch of them with one more axis"
                )
            if found != width and width != -1:
                raise ConfigurationError(
                    f"the {entry.name} is one of {found or 'a single observation'}, others are of"
                    f" {width or 'a single observation'}; give all entries for the same rows"
                )
            width = found
            rows |= entry.rows(array)
        return rows, width is not None

    def mask(
        self, action: ActionSpec, observation: Any, mask: Any, width: int
    ) -> np.ndarray | None:
        """Allowed actions [N, M]; None: all."""
        if mask is None and self._mask_in_observation:
            mask = observation[ACTION_MASK]
        if mask is None:
            return None
        if action.kind == "box":
            raise ConfigurationError("Box actions have no mask; leave it out")
        if isinstance(mask, tuple | list) and not np.isscalar(mask[0]):
            mask = np.concatenate([np.asarray(part) for part in mask], axis=-1)
        joined = np.asarray(mask).astype(bool)
        if joined.ndim != 2:
            joined = joined_mask(sum(action.sizes), joined)[None]
        if joined.shape != (width, sum(action.sizes)):
            raise ConfigurationError(
                f"the mask has shape {joined.shape}, but there are {width} observations and"
                f" {sum(action.sizes)} actions to allow"
            )
        if not joined.any(1).all():
            raise ConfigurationError("the mask allows no action at all in one of the rows")
        return joined


def _at(space: gymnasium.Space, path: Path) -> gymnasium.Space:
    for key in path:
        assert isinstance(space, spaces.Dict | spaces.Tuple)
        space = space[key]
    return space


def _origin(space: gymnasium.Space) -> np.ndarray:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.broadcast_to(np.asarray(space.start), space.shape or ())
    return np.zeros(space.shape or ())


def _typed(reader: LeafReader, array: np.ndarray) -> np.ndarray:
    leaf, read = reader.leaf, reader.view(array)
    if read.dtype == leaf.dtype and leaf.kind != "discrete":
        return np.ascontiguousarray(read)
    if leaf.kind != "vector" and read.dtype.kind not in "iub":
        raise ConfigurationError(
            f"the {leaf.name} is {read.dtype}, but the policy was trained with whole numbers; give"
            f" it as {leaf.dtype}"
        )
    if leaf.kind == "discrete" and ((read < 0) | (read >= leaf.categories)).any():
        raise ConfigurationError(
            f"the {leaf.name} is outside of the {leaf.categories} values that the policy knows"
        )
    try:
        return np.ascontiguousarray(read, dtype=leaf.dtype)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the {leaf.name} is not made of numbers: {error}") from error


@dataclass
class PolicyState:
    """The memory of one episode, or of a batch of them; `act` updates it."""

    memory: Memory
    first: np.ndarray
    """Rows whose next observation is the first of an episode."""
    frames: dict[str, FrameStack] = field(default_factory=dict)

    @staticmethod
    def joined(states: Sequence[PolicyState]) -> PolicyState:
        """The state of all these episodes, for one forward pass."""
        if len(states) == 1:
            return states[0]
        memories, first = [state.memory for state in states], states[0]
        frames = {name: copy(stack) for name, stack in first.frames.items()}
        for name, stack in frames.items():
            stack.frames = np.concatenate([state.frames[name].frames for state in states])
        return PolicyState(
            Memory.joined(memories), np.concatenate([state.first for state in states]), frames
        )

    def divide(self, states: Sequence[PolicyState]) -> None:
        """The reverse of `joined`: update each of the states."""
        if self is states[0]:
            return
        start = 0
        for state in states:
            part = slice(start, start + len(state.first))
            state.memory, state.first = self.memory.rows(part), self.first[part].copy()
            for name, stack in state.frames.items():
                stack.frames = self.frames[name].frames[part].copy()
            start = part.stop

    def reset(self, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Begin a new episode.

        Args:
            rows: Rows of the batch, as numbers or as a mask; None: all.
        """
        self.first[slice(None) if rows is None else rows] = True


class TrainedPolicy:
    """The policy of a run at one checkpoint, made by `veldt.load`."""

    def __init__(
        self,
        network: NetworkFactory,
        weights: Parameters,
        interface: Interface,
        *,
        architecture: str,
        env: str,
        env_steps: int,
        seed: int = 0,
    ) -> None:
        self.architecture, self.env, self.env_steps = architecture, env, env_steps
        self.observation_space: gymnasium.Space = interface.observation_space
        self.action_space: gymnasium.Space = interface.action_space
        self.interface = interface
        self._player = Player(network.in_float32().blank(), seed)
        self._player.load(weights.vector)
        self._network = self._player.network
        self._reader = ObservationReader(interface)
        self._action = network.spec.action
        self._offset = action_offset(interface.action_space)
        self._dtype = interface.action_space.dtype
        self.reads_reward = bool(self._network.input_fields())
        """Whether `act` needs the last reward."""
        self.has_memory: bool = (
            self._network.core is not None or self.reads_reward or interface.frame_stack > 1
        )
        """Whether `act` needs a state."""
        self._new_rows = np.ones(1, bool)
        self._no_memory = self._player.start(1)

    def __repr__(self) -> str:
        return (
            f"TrainedPolicy({self.architecture} on {self.env} after {self.env_steps:,} env steps:"
            f" {self.observation_space} -> {self.action_space})"
        )

    @property
    def leaves(self) -> list[ObservationLeaf]:
        """The arrays that the network reads from an observation."""
        return [reader.leaf for entry in self._reader.entries for reader in entry.readers]

    @property
    def num_choices(self) -> int:
        """Length of a mask of allowed actions; 0 for Box actions."""
        return sum(self._action.sizes)

    def initial_state(self, batch: int | None = None) -> PolicyState:
        """The memory of a new episode.

        Args:
            batch: Number of episodes side by side; None: one, without a batch axis.
        """
        width = 1 if batch is None else batch
        depth = self.interface.frame_stack
        frames = {}
        if depth > 1:
            frames = {
                leaf.name: FrameStack(leaf, width, depth)
                for leaf in self.leaves
                if leaf.kind != "discrete"
            }
        return PolicyState(self._player.start(width), np.ones(width, bool), frames)

    def act(
        self,
        observation: Observation,
        state: PolicyState | None = None,
        mask: np.ndarray | Sequence[np.ndarray] | None = None,
        deterministic: bool = True,
        reward: np.ndarray | float | None = None,
    ) -> Action:
        """The action for one observation, or the actions for a batch of them.

        Args:
            observation: What the environment returned; a batch has one more axis.
            state: Memory from `initial_state`, which is updated. Needed by policies with a memory:
                recurrent ones, with stacked frames, or with the last action and reward as inputs.
            mask: Allowed actions, if they are not part of the observation.
            deterministic: Take the best action instead of drawing one as in training.
            reward: Reward of the last action, for policies that read it.
        """
        rows, is_batch = self._reader.read(observation)
        width = len(next(iter(rows.values())))
        allowed = self._reader.mask(self._action, observation, mask, width)
        if allowed is not None:
            rows[ACTION_MASK] = allowed
        action = self.act_on_rows(rows, state, deterministic, reward)
        return action if is_batch else action[0]

    def act_on_rows(
        self,
        rows: dict[str, np.ndarray],
        state: PolicyState | None = None,
        deterministic: bool = True,
        reward: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Actions for leaves [N, ...] by name and masks, as `ObservationReader` returns them."""
        width = len(next(iter(rows.values())))
        if state is None:
            memory, first = self._without_state(width)
        else:
            memory, first = self._remember(state, rows, width, reward)
        action = self._player.act(rows, memory, first, deterministic)
        if state is not None:
            first[:] = False
        if self._offset is not None:
            action = action + self._offset
        if action.dtype != self._dtype:
            action = action.astype(self._dtype)
        return action

    def _without_state(self, width: int) -> tuple[Memory, np.ndarray]:
        if self.has_memory:
            raise ConfigurationError(
                "this policy has a memory; make one with state = policy.initial_state(), pass it to"
                " every act, and call state.reset() when an episode ends"
            )
        if width != len(self._new_rows):
            self._new_rows = np.ones(width, bool)
        return self._no_memory, self._new_rows

    def _remember(
        self,
        state: PolicyState,
        rows: dict[str, np.ndarray],
        width: int,
        reward: np.ndarray | float | None,
    ) -> tuple[Memory, np.ndarray]:
        if width != len(state.first):
            raise ConfigurationError(
                f"the state is of {len(state.first)} episodes, but there are {width} observations;"
                f" make it with policy.initial_state({width})"
            )
        if reward is not None:
            state.memory.received(reward)
        elif self.reads_reward and not state.first.all():
            raise ConfigurationError(
                "this policy reads the last reward; pass what env.step returned as reward"
            )
        for name, stack in state.frames.items():
            stack.push(rows[name], state.first)
            rows[name] = stack.frames
        return state.memory, state.first

    def module(self) -> PolicyModule:
        """The policy as a torch.nn.Module that shares its weights."""
        return PolicyModule(self._network, self.interface, self._reader.entries)
