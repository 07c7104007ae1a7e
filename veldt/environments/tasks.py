# SPDX-License-Identifier: Apache-2.0
"""Several environments that one network learns together, each copy with one of them.

"MinAtar/Breakout-v1,MinAtar/Asterix-v1" names two. Their observations must have one type and, but
for the channels of images, one shape; missing channels are zeros. Actions are the union: those that
a task does not have are masked. The infos of episodes hold the return of each task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.environments.atari import reference_scores
from veldt.environments.vector import RETURN_OF
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK

_IMAGE_AXES = 3


def task_names(name: object) -> tuple[str, ...]:
    """The environments that `name` lists; empty where it is a single one."""
    names = tuple(part.strip() for part in name.split(",")) if isinstance(name, str) else ()
    return names if len(names) > 1 else ()


def short_name(task: str) -> str:
    return task.rpartition("/")[2]


def normalised(task: str, score: float) -> float | None:
    """0 is a random player and 1 a policy trained on this task alone; None if it is unknown."""
    known = reference_scores().get(task)
    return None if known is None else (score - known[0]) / (known[1] - known[0])


def scores_by_task(parts: Sequence[str], returns: np.ndarray) -> dict[str, dict[str, float | None]]:
    """Mean and normalised score of each task or policy, from one return of each environment."""
    found: dict[str, dict[str, float | None]] = {}
    for task in dict.fromkeys(parts):
        own = np.resize([part == task for part in parts], len(returns))
        mean = float(returns[own].mean())
        found[short_name(task)] = {"mean": mean, "normalized": normalised(task, mean)}
    return found


class Union:
    """The spaces of several tasks, of which `envs` are instances."""

    def __init__(self, tasks: Sequence[str], envs: Sequence[gymnasium.Env]) -> None:
        first = envs[0].observation_space
        for task, env in zip(tasks, envs, strict=True):
            box, action = env.observation_space, env.action_space
            if not isinstance(action, spaces.Discrete) or action.start:
                raise ConfigurationError(
                    f"several environments for one network need Discrete actions from 0 on; {task}"
                    f" has {action}"
                )
            if not (isinstance(box, spaces.Box) and _differ_in_channels_only(box, first)):
                raise ConfigurationError(
                    f"one network cannot learn {task} and {tasks[0]}: observations are {box} and"
                    f" {first}; only the channels of images, their last axis, may differ"
                )
        boxes: list[Any] = [env.observation_space for env in envs]
        shape = (*boxes[0].shape[:-1], max(box.shape[-1] for box in boxes))
        low = float(min(box.low.min() for box in boxes))
        high = float(max(box.high.max() for box in boxes))
        self.tasks, self.observation = tasks, spaces.Box(low, high, shape, boxes[0].dtype.type)
        self.num_actions = [int(env.action_space.n) for env in envs]  # type: ignore[attr-defined]
        self.action = spaces.Discrete(max(self.num_actions))


def _differ_in_channels_only(box: spaces.Box, first: gymnasium.Space) -> bool:
    if not isinstance(first, spaces.Box) or box.dtype != first.dtype or not box.shape:
        return False
    is_image = len(box.shape) == len(first.shape) == _IMAGE_AXES
    return box.shape == first.shape or (is_image and box.shape[:-1] == first.shape[:-1])


class OneOfSeveral(gymnasium.Wrapper):
    """Task number `index` in the spaces of all of them.

    Args:
        env: The environment of this task.
        union: The spaces of all tasks.
        index: Which of the tasks it is.
        tells_task: Whether the number of the task is an entry of the observation.
    """

    def __init__(self, env: gymnasium.Env, union: Union, index: int, tells_task: bool) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = union.observation, union.action
        if tells_task:
            entries = {"image": union.observation, "task": spaces.Discrete(len(union.tasks))}
            self.observation_space = spaces.Dict(entries)
        self._index, self._tells_task = index, tells_task
        self._return_name = RETURN_OF + short_name(union.tasks[index])
        allowed = np.arange(union.action.n) < union.num_actions[index]
        self._mask = {} if min(union.num_actions) == union.action.n else {ACTION_MASK: allowed}
        self._shape, self._dtype = union.observation.shape, union.observation.dtype

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._return = 0.0
        return self._in_union(observation), {**info, **self._mask}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        info = {**info, **self._mask, self._return_name: self._return}
        return self._in_union(observation), reward, terminated, truncated, info

    def _in_union(self, observation: Any) -> Any:
        if observation.shape != self._shape:
            padded = np.zeros(self._shape, self._dtype)
            padded[..., : observation.shape[-1]] = observation
            observation = padded
        return {"image": observation, "task": self._index} if self._tells_task else observation


def makers(
    make: Callable[[str], gymnasium.Env],
    tasks: Sequence[str],
    num_envs: int,
    tells_task: bool,
) -> list[Callable[[], gymnasium.Env]]:
    """What makes each of `num_envs` copies: the tasks in turn."""
    instances = [make(task) for task in tasks]
    union = Union(tasks, instances)
    for instance in instances:
        instance.close()

    def made(index: int) -> gymnasium.Env:
        return OneOfSeveral(make(tasks[index]), union, index, tells_task)

    return [functools.partial(made, copy % len(tasks)) for copy in range(num_envs)]
