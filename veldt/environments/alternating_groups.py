# SPDX-License-Identifier: Apache-2.0
"""Groups of environments that one thread of a native vector environment steps alternately.

The thread steps one group while a policy computes actions for another; a thread per group would be
woken in every step. The order is reset 0, send 0, reset 1, send 1, recv 0, send 0, recv 1, ...
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

Received = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class AlternatingGroups(Protocol):
    """A vector environment that returns `width` of its environments at a time."""

    env: Any
    width: int

    def begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Reset all; returns the observation and info of the first group."""
        ...

    def send(self, actions: np.ndarray, first: int) -> None:
        """Actions of the environments from number `first` on."""
        ...

    def recv(self) -> Received: ...


class AlternatingGroup(VectorEnv):
    """One of the groups, with the interface of a vector environment."""

    def __init__(self, groups: AlternatingGroups, index: int) -> None:
        self._groups, self._index = groups, index
        self.num_envs = groups.width
        self._first = index * groups.width
        self.single_observation_space = groups.env.single_observation_space
        self.single_action_space = groups.env.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self._index:  # the first group's reset has started it
            observation, *_, info = self.recv()
            return observation, info
        observation, info = self._groups.begin(seed)
        return observation, self._checked(info)

    def send(self, actions: np.ndarray) -> None:
        self._groups.send(actions, self._first)

    def recv(self) -> Received:
        observation, reward, terminated, truncated, info = self._groups.recv()
        return observation, reward, terminated, truncated, self._checked(info)

    def close(self, **_: Any) -> None:
        self._groups.env.close()

    def _checked(self, info: dict[str, Any]) -> dict[str, Any]:
        ids, last = info["env_id"], self._first + self.num_envs - 1
        if ids[0] != self._first or ids[-1] != last:
            raise RuntimeError(
                f"group {self._index} received environments {ids[0]} to {ids[-1]}:"
                " alternating groups were stepped out of order"
            )
        return info


def groups_of(groups: AlternatingGroups) -> list[AlternatingGroup]:
    return [AlternatingGroup(groups, index) for index in range(groups.env.num_envs // groups.width)]
