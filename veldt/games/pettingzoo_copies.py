# SPDX-License-Identifier: Apache-2.0
"""One PettingZoo environment, parallel or AEC, told in the words of VectorGame.

Players are numbered by `possible_agents`. Whoever has left is not to act, and its last observation
stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK


class Copy(ABC):
    """What one game shows and what its last step brought; arrays have one entry per player."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        count = len(self.agents)
        self.to_act = np.zeros(count, dtype=bool)
        self.rewards = np.zeros(count, dtype=np.float32)
        self.terminated = np.zeros(count, dtype=bool)
        self.truncated = np.zeros(count, dtype=bool)
        self._seen: dict[str, Any] = {}
        self._numbers = {agent: number for number, agent in enumerate(self.agents)}

    @property
    def over(self) -> bool:
        return not self.to_act.any()

    def reset(self, seed: int | None) -> None:
        """Begin a new game; only the first one has a seed, later ones go on from it."""
        self._seen = {}
        self._forget_step()
        self._begin(seed)
        if self.over:
            raise ConfigurationError(
                f"the PettingZoo environment {self.env} has no agent to act after its reset"
            )

    def step(self, actions: list[Any]) -> None:
        """Play the actions of those who are to act; entries of the others are not looked at."""
        self._forget_step()
        self._play(actions)

    def observation(self, player: int) -> Any:
        """What a player sees, or saw last; None if it has seen nothing in this game."""
        return self._seen.get(self.agents[player])

    @abstractmethod
    def mask(self, player: int) -> Any:
        """The player's action mask; None where there is none."""

    @abstractmethod
    def _begin(self, seed: int | None) -> None: ...

    @abstractmethod
    def _play(self, actions: list[Any]) -> None: ...

    def _forget_step(self) -> None:
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0

    def _add_rewards(self, rewards: dict[str, Any]) -> None:
        for agent, reward in rewards.items():
            self.rewards[self._number(agent)] += float(reward)

    def _number(self, agent: str) -> int:
        if agent not in self._numbers:
            raise ConfigurationError(
                f"the PettingZoo agent '{agent}' joined a game but is not among its "
                f"possible_agents {', '.join(self.agents)}; name all of them there"
            )
        return self._numbers[agent]

    def _mask_of(self, agent: str, info: dict[str, Any]) -> Any:
        seen = self._seen.get(agent)
        if isinstance(seen, dict) and ACTION_MASK in seen:
            return seen[ACTION_MASK]
        return info.get(ACTION_MASK)


class ParallelCopy(Copy):
    """All agents that are present act in each step."""

    _infos: dict[str, Any]

    def _begin(self, seed: int | None) -> None:
        seen, self._infos = self.env.reset(seed=seed)
        self._seen.update(seen)
        self._set_to_act()

    def _play(self, actions: list[Any]) -> None:
        chosen = {agent: actions[self._number(agent)] for agent in self.env.agents}
        seen, rewards, terminated, truncated, self._infos = self.env.step(chosen)
        self._seen.update(seen)
        self._add_rewards(rewards)
        for flags, ends in ((self.terminated, terminated), (self.truncated, truncated)):
            for agent, ended in ends.items():
                flags[self._number(agent)] = bool(ended) and self.to_act[self._number(agent)]
        was_to_act = self.to_act.copy()
        self._set_to_act()
        # Some environments drop an agent without a flag; its column must end all the same.
        silent = was_to_act & ~self.to_act & ~self.terminated & ~self.truncated
        self.truncated |= silent

    def mask(self, player: int) -> Any:
        agent = self.agents[player]
        return self._mask_of(agent, self._infos.get(agent) or {})

    def _set_to_act(self) -> None:
        self.to_act[:] = False
        for agent in self.env.agents:
            self.to_act[self._number(agent)] = True
        self.to_act &= ~(self.terminated | self.truncated)


class SequentialCopy(Copy):
    """Agents act one after the other (AEC); those who have ended are taken out on their turn."""

    def _begin(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._ended = np.zeros(len(self.agents), dtype=bool)
        self._select()

    def _play(self, actions: list[Any]) -> None:
        self.env.step(actions[self._number(self.env.agent_selection)])
        self._after_step()
        self._select()

    def observation(self, player: int) -> Any:
        agent = self.agents[player]
        if agent in self.env.agents and not self._ended[player]:
            self._seen[agent] = self.env.observe(agent)
        return self._seen.get(agent)

    def mask(self, player: int) -> Any:
        self.observation(player)
        agent = self.agents[player]
        return self._mask_of(agent, self.env.infos.get(agent) or {})

    def _after_step(self) -> None:
        env = self.env
        self._add_rewards(env.rewards)
        for agent in env.agents:
            number = self._number(agent)
            if not self._ended[number] and (env.terminations[agent] or env.truncations[agent]):
                self._seen[agent] = env.observe(agent)
                self.terminated[number] = bool(env.terminations[agent])
                self.truncated[number] = bool(env.truncations[agent])
                self._ended[number] = True

    def _select(self) -> None:
        """On to the next agent that can act; agents that have ended may only step None."""
        env = self.env
        self.to_act[:] = False
        while env.agents and not all(self._ended[self._number(agent)] for agent in env.agents):
            number = self._number(env.agent_selection)
            if not self._ended[number]:
                self.to_act[number] = True
                return
            env.step(None)
            self._after_step()
