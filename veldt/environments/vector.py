# SPDX-License-Identifier: Apache-2.0
"""One interface over every kind of vector environment.

Rewards, flags and observations have fixed names and types; episode returns are sums of raw rewards.
Numbers in the infos of ended episodes become metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from veldt.environments.spaces import (
    FrameStack,
    LeafReader,
    MaskReader,
    action_offset,
    bad_rows,
    cleared,
    random_actions,
)
from veldt.types import ACTION_MASK, EnvironmentSpec

EPISODE_INFO = "veldt.episode_info"
"""Info entry of copies that Veldt makes: numbers by name where an episode has ended; in the info of
their vector {row: {name: number}}."""
ABORTED = "veldt.aborted"
"""Info entry of copies that failed in this step; in the info of their vector a list of rows."""
RETURN_OF = "return/"
"""Prefix of a task's or a policy's return in the infos of episodes."""
_FINAL = "final_info"
_NO_METRICS = {
    *("final_obs", ACTION_MASK, EPISODE_INFO, ABORTED, _FINAL),
    *("env_id", "players", "elapsed_step", "frame_number", "lives", "reward", "terminated"),
    *("TimeLimit.truncated", "episode/r", "episode/l", "episode/t"),
}
Found = dict[str, list[float]]

_NO_RETURNS = np.zeros(0, dtype=np.float64)
_NO_LENGTHS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class OpenedVector:
    """A Gymnasium vector environment and how to read it."""

    env: Any
    autoreset: AutoresetMode
    frames_per_step: int = 1
    rows_per_env_step: int = 1
    policies: tuple[str, ...] = ()
    action_space: Any = None
    """Of a trained policy, where `env` counts actions from 0 and the game behind it does not."""
    seeded: bool = False
    """Whether the seed was set at construction, so that reset() takes none."""
    life_loss: str = "none"
    """How lost lives end an episode: "none"; "continues": terminated is set but no reset follows
    (ale-py); "resets": a reset row follows but the game continues (EnvPool)."""
    in_halves: bool = False
    """Whether `env` has send() and recv(), so that other work can be done between them."""


@dataclass
class Step:
    """The result of a step; its arrays are valid until the next one."""

    reward: np.ndarray
    """float32 [E], for training; clipped with `reward_clip`."""
    terminated: np.ndarray
    truncated: np.ndarray
    """bool [E]. Both may be set; then the episode terminated, and nothing is bootstrapped."""
    ignored: np.ndarray
    """bool [E]: reset rows. Their action was not used, their reward is 0, they are no env step."""
    final_observations: dict[str, np.ndarray] | None
    """With same_step_reset: "final_<leaf>" [E, ...], valid where terminated or truncated."""
    over: np.ndarray
    """bool [E]: where a whole episode ended, not only a life; the order of the fields below."""
    episode_returns: np.ndarray
    """float64, unclipped returns of the episodes that ended in this step; often empty."""
    episode_lengths: np.ndarray
    env_steps: int
    """Environments whose action was used."""
    aborted_episodes: int = 0
    """Episodes that were truncated because their environment failed; not counted as results."""
    episode_info: Found = field(default_factory=dict)
    """Numbers in the infos of the ended episodes, by name; often empty."""


class VectorEnvironment:
    """E environments stepped together. Call reset() once before the first step.

    NaN and infinity are replaced by zeros; `bad_rows` counts the rows that had them."""

    def __init__(
        self,
        opened: OpenedVector,
        spec: EnvironmentSpec,
        readers: tuple[LeafReader, ...],
        mask: MaskReader | None,
        seed: int,
        frame_stack: int = 1,
        reward_clip: float | None = None,
    ) -> None:
        env = opened.env
        num_envs = env.num_envs
        self.spec = spec
        self.num_envs = num_envs
        self.observations: dict[str, np.ndarray] = {}
        self.first = np.ones(num_envs, dtype=bool)
        self.bad_rows = 0
        self._env = env
        self._opened = opened
        self._readers = readers
        self._mask = mask
        self._seed: int | None = None if opened.seeded else seed
        self._reward_clip = reward_clip
        self._action_offset = action_offset(env.single_action_space)
        self._buffers: dict[str, np.ndarray] = {}
        self._stacks = {
            reader.leaf.name: FrameStack(reader.leaf, num_envs, frame_stack)
            for reader in readers
            if frame_stack > 1 and reader.leaf.kind != "discrete"
        }
        self._no_rows = np.zeros(num_envs, dtype=bool)
        self._resetting = self._no_rows
        self._num_resetting = 0
        self._rows_left = 0
        """Rows that do not make a whole env step yet."""
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._step = Step(
            reward=np.zeros(num_envs, dtype=np.float32),
            terminated=self._no_rows,
            truncated=self._no_rows,
            ignored=self._no_rows,
            final_observations=None,
            over=self._no_rows,
            episode_returns=_NO_RETURNS,
            episode_lengths=_NO_LENGTHS,
            env_steps=num_envs,
        )
        if spec.same_step_reset:
            self._step.final_observations = {
                "final_" + leaf.name: np.zeros((num_envs, *leaf.shape), leaf.dtype)
                for leaf in spec.observation
            }

    def reset(self) -> None:
        """Begin new episodes everywhere. Only the first call uses the seed."""
        if self._opened.seeded:
            observation, info = self._env.reset()
        else:
            observation, info = self._env.reset(seed=self._seed)
        self._seed = None
        self.first = np.ones(self.num_envs, dtype=bool)
        self._resetting, self._num_resetting = self._no_rows, 0
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._prepare_buffers(observation)
        self._observe(observation, info)

    def step(self, env_action: np.ndarray) -> Step:
        """Step all environments; afterwards `observations` and `first` are the new ones."""
        self.send(env_action)
        return self.receive()

    def send(self, env_action: np.ndarray) -> None:
        """The first half of a step: starts environments that have a thread of their own."""
        if self._action_offset is not None:
            env_action = env_action + self._action_offset
        self._action = env_action
        if self._opened.in_halves:
            self._env.send(env_action)

    def receive(self) -> Step:
        """The second half of a step; until then, the previous step stays valid."""
        answer = self._env.recv() if self._opened.in_halves else self._env.step(self._action)
        observation, reward, terminated, truncated, info = answer
        self.info: dict[str, Any] = info
        ignored, num_ignored = self._resetting, self._num_resetting
        if num_ignored:
            reward = np.where(ignored, 0, reward)
            terminated = terminated & ~ignored
            truncated = truncated & ~ignored
        reward = self._finite(reward)
        ended = terminated | truncated
        num_ended = int(np.count_nonzero(ended))

        step = self._step
        step.terminated, step.truncated, step.ignored = terminated, truncated, ignored
        rows = self.num_envs - num_ignored + self._rows_left
        step.env_steps, self._rows_left = divmod(rows, self.spec.rows_per_env_step)
        if self._reward_clip is None:
            step.reward[:] = reward
        else:
            np.minimum(np.maximum(reward, -self._reward_clip), self._reward_clip, out=step.reward)
        self._returns += reward
        self._lengths += 1

        over = ended
        if self._opened.life_loss != "none":
            over = truncated | (terminated & (info["lives"] <= 0))  # of a game, not only a life
        if self.spec.same_step_reset:
            self.first = ended
            if num_ended:
                self._keep_final_observations(info["final_obs"], np.flatnonzero(ended))
        else:
            self.first = ignored
            resetting = ended
            if self._opened.life_loss == "continues":
                resetting = over
                self.first = ignored | (ended & ~over)
            self._resetting, self._num_resetting = resetting, int(np.count_nonzero(resetting))
        aborted = self.info.get(ABORTED, ())
        step.aborted_episodes = len(aborted)
        if aborted:  # their returns are no results
            over = over.copy()
            over[aborted] = False
            self._returns[aborted] = 0.0
            self._lengths[aborted] = 0
        self._count_episodes(over, num_ended)
        self._observe(observation, info)
        return step

    def close(self) -> None:
        self._env.close()

    def random_actions(self, random: np.random.Generator) -> np.ndarray:
        """Uniform allowed actions for the current observations."""
        mask = self.observations.get(ACTION_MASK)
        return random_actions(self.spec.action, self.num_envs, random, mask)

    def render(self) -> np.ndarray | None:
        """An RGB picture [H, W, 3] of the first environment; None if it cannot be rendered."""
        if getattr(self._env, "render_mode", None) is not None:
            frames = self._env.render()
            return None if frames is None else np.asarray(frames[0])
        for leaf in self.spec.observation:
            if leaf.kind == "image":
                newest = self.observations[leaf.name][0, -1]
                return np.repeat(newest[..., None], 3, axis=-1)
        return None

    def _prepare_buffers(self, observation: Any) -> None:
        """Allocate buffers for leaves whose dtype differs from the declared one.

        Decided by the first observation, because some environments deviate from their space."""
        for reader in self._readers:
            leaf, array = reader.leaf, reader.read(observation)
            if not isinstance(array, np.ndarray) or array.dtype != leaf.dtype:
                self._buffers[leaf.name] = np.zeros((self.num_envs, *leaf.shape), leaf.dtype)

    def _observe(self, observation: Any, info: dict[str, Any]) -> None:
        for reader in self._readers:
            name = reader.leaf.name
            array = reader.read(observation)
            if name in self._stacks:
                self._stacks[name].push(array, self.first)
                array = self._stacks[name].frames
            elif name in self._buffers:
                np.copyto(self._buffers[name], array, casting="unsafe")
                array = self._buffers[name]
            self.observations[name] = self._finite(array)
        if self._mask is not None:
            self.observations[ACTION_MASK] = self._mask.read(observation, info)

    def _keep_final_observations(self, final: Any, rows: np.ndarray) -> None:
        """Copy the last observations of `rows`, whose episodes have ended."""
        if isinstance(final, np.ndarray) and final.dtype == object:
            space = self._env.single_observation_space
            batch: Any = gymnasium.vector.utils.create_empty_array(space, n=len(rows))
            # For Tuple spaces only the returned batch is filled.
            batch = gymnasium.vector.utils.concatenate(space, list(final[rows]), batch)
            self._keep_final(batch, np.arange(len(rows)), rows)
        else:
            self._keep_final(final, rows, rows)

    def _keep_final(self, source: Any, source_rows: np.ndarray, rows: np.ndarray) -> None:
        finals = self._step.final_observations
        assert finals is not None
        for reader in self._readers:
            name = reader.leaf.name
            last = reader.read(source)[source_rows]
            if name in self._stacks:
                last = self._stacks[name].ending_with(last, rows)
            finals["final_" + name][rows] = self._finite(last)

    def _finite(self, array: np.ndarray) -> np.ndarray:
        bad = bad_rows(array)
        if bad is None:
            return array
        self.bad_rows += int(np.count_nonzero(bad))
        return cleared(array)

    def _count_episodes(self, over: np.ndarray, num_ended: int) -> None:
        step = self._step
        step.over, step.episode_returns, step.episode_lengths = over, _NO_RETURNS, _NO_LENGTHS
        step.episode_info = {}
        if num_ended:
            step.episode_info = read_episode_info(self.info, over) if self.info else {}
            step.episode_returns, step.episode_lengths = self._returns[over], self._lengths[over]
            policies = self.spec.policies
            for row in np.flatnonzero(over) if policies else ():
                name = RETURN_OF + policies[row % len(policies)]
                step.episode_info.setdefault(name, []).append(float(self._returns[row]))
            self._returns[over] = 0.0
            self._lengths[over] = 0
        if self._num_resetting:
            # The reset row that follows will add one that is no step.
            self._lengths[self._resetting] -= 1


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in one environment's info, those of a dict in it as "dict/name"."""
    found = {}
    for name, value in _flat(info):
        number = _number(value)
        if number is not None:
            found[name] = number
    return found


def read_episode_info(info: Mapping[str, Any], over: np.ndarray) -> Found:
    """The numbers of the episodes that are `over`, bool [E], by name."""
    found: Found = {}
    for row in np.flatnonzero(over).tolist():
        if EPISODE_INFO in info:
            numbers = info[EPISODE_INFO].get(row, {})
        else:
            numbers = numbers_of(_of_row(info, row, len(over)))
        for name, number in numbers.items():
            found.setdefault(name, []).append(number)
    return found


def _of_row(info: Mapping[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """The info of one environment out of that of a vector; where it has ended, of its last step."""
    found: dict[str, Any] = {}
    if isinstance(info.get(_FINAL), Mapping):  # a wrapper may have written beside it
        info = {"episode": info.get("episode", {}), **info[_FINAL]}
    for key, value in info.items():
        given = info.get(f"_{key}")
        if isinstance(given, np.ndarray) and given.shape == (num_envs,) and not given[row]:
            continue
        if isinstance(value, Mapping):
            found[key] = _of_row(value, row, num_envs)
        elif isinstance(value, np.ndarray) and value.shape == (num_envs,):
            found[key] = value[row]
    return found


def _flat(info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries, and entries of nested dicts, by name."""
    for key, value in info.items():
        if not isinstance(key, str) or key.startswith("_") or key in _NO_METRICS:
            continue
        if not isinstance(value, Mapping):
            yield key, value
            continue
        for inner, entry in value.items():
            name = f"{key}/{inner}"
            if not str(inner).startswith("_") and name not in _NO_METRICS:
                yield name, entry


def _number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not isinstance(value, bool | int | float | np.bool_ | np.number):
        return None
    try:
        number = float(value)
    except (TypeError, OverflowError):  # complex numbers, and integers beyond all bounds
        return None
    return number if math.isfinite(number) else None
