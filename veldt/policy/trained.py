# SPDX-License-Identifier: Apache-2.0
"""A trained policy outside its run: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import gymnasium
import numpy as np

from veldt.environments import Interface
from veldt.environments.observations import ObservationReader
from veldt.environments.spaces import FrameStack, action_offset
from veldt.errors import ConfigurationError
from veldt.networks import Memory, NetworkFactory, Player
from veldt.policy.module import PolicyModule
from veldt.run.best import BEST
from veldt.run.loading import restored
from veldt.types import ACTION_MASK, ObservationLeaf, Parameters

Observation: TypeAlias = "np.ndarray | float | Mapping[str, Observation] | tuple[Observation, ...]"
"""What an environment's step returns, or a batch of that."""
Action: TypeAlias = "np.ndarray | np.integer"
"""As the environment's step takes it."""


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


def loaded(
    run_dir: Path,
    checkpoint: str | int = BEST,
    policy: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
) -> TrainedPolicy:
    """The policy at a checkpoint, without the environment."""
    found = restored(
        run_dir, checkpoint, policy=policy, trust_code=trust_code, without_environment=True
    )
    environment = found.plan.problem.environment
    return TrainedPolicy(
        found.plan.topology.network,
        found.weights,
        environment.interface(),
        architecture=found.plan.architecture,
        env=environment.name,
        env_steps=found.env_steps,
        seed=seed,
    )
