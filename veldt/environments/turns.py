# SPDX-License-Identifier: Apache-2.0
"""Groups of environments that take turns on one thread of a native vector environment.

The thread steps one group while a policy looks at another. A thread for each group would have to be
woken for every step, and on busy cores waits for its turn. One thread also keeps the groups apart:
what it was sent first, it finishes first. The order is reset 0, send 0, reset 1, send 1, recv 0,
send 0, recv 1, ...
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

Received = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class Turns(Protocol):
    """A vector environment that delivers `width` of its environments at a time."""

    env: Any
    width: int

    def begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Reset all of them; what the first group sees."""
        ...

    def send(self, actions: np.ndarray, first: int) -> None:
        """Actions of the environments from number `first` on."""
        ...

    def recv(self) -> Received: ...


class TurnGroup(VectorEnv):
    """One group of a vector environment whose groups take turns."""

    def __init__(self, turns: Turns, index: int) -> None:
        self._turns, self._index = turns, index
        self.num_envs = turns.width
        self._first = index * turns.width
        self.single_observation_space = turns.env.single_observation_space
        self.single_action_space = turns.env.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self._index:  # the first group's reset has begun it
            observation, *_, info = self.recv()
            return observation, info
        observation, info = self._turns.begin(seed)
        return observation, self._checked(info)

    def send(self, actions: np.ndarray) -> None:
        self._turns.send(actions, self._first)

    def recv(self) -> Received:
        observation, reward, terminated, truncated, info = self._turns.recv()
        return observation, reward, terminated, truncated, self._checked(info)

    def close(self, **_: Any) -> None:
        self._turns.env.close()

    def _checked(self, info: dict[str, Any]) -> dict[str, Any]:
        ids, last = info["env_id"], self._first + self.num_envs - 1
        if ids[0] != self._first or ids[-1] != last:
            raise RuntimeError(
                f"group {self._index} was given environments {ids[0]} to {ids[-1]}: groups that"
                " take turns were used out of order"
            )
        return info


def groups_of(turns: Turns) -> list[TurnGroup]:
    return [TurnGroup(turns, index) for index in range(turns.env.num_envs // turns.width)]
