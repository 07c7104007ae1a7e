# SPDX-License-Identifier: Apache-2.0
"""Two small PettingZoo environments whose every answer is known by hand."""

import numpy as np
import pettingzoo
from gymnasium import spaces


class Countdown(pettingzoo.ParallelEnv):
    """Agent i leaves after `lives[i]` steps; in step t it receives 10 * i + t, and sees [i, t]."""

    metadata = {"name": "countdown"}  # noqa: RUF012

    def __init__(self, lives=(1, 3, 2), silent=False, shape=(2,), **agent_spaces):
        self.possible_agents = [f"agent_{number}" for number in range(len(lives))]
        self.lives = dict(zip(self.possible_agents, lives, strict=True))
        self.silent, self.shape, self.agent_spaces = silent, shape, agent_spaces

    def observation_space(self, agent):
        return self.agent_spaces.get(agent, spaces.Box(-9.0, 99.0, (2,), np.float32))

    def action_space(self, agent):
        return self.agent_spaces.get(agent + "_action", spaces.Discrete(2, start=1))

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.count += 1
        numbers = {agent: self.possible_agents.index(agent) for agent in self.agents}
        rewards = {agent: 10 * number + self.count for agent, number in numbers.items()}
        over = {agent: self.lives[agent] == self.count for agent in self.agents}
        seen, infos = self.seen(), {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        if self.silent:
            over = dict.fromkeys(over, False)
        return seen, rewards, over, dict.fromkeys(over, False), infos

    def seen(self):
        rows = {agent: np.zeros(self.shape, np.float32) for agent in self.agents}
        for agent, row in rows.items():
            row[:2] = [self.possible_agents.index(agent), self.count]
        return rows


class TakingTurns(pettingzoo.AECEnv):
    """Agents a, b, c in turn; each turn pays the mover 1 and all others 0.1. Agent b ends on c's
    first turn; all end after the sixth move. Masks are in the info: move t allows action t % 2."""

    metadata = {"name": "taking_turns", "render_modes": ["human", "ansi"]}  # noqa: RUF012
    possible_agents = ("a", "b", "c")

    def __init__(self):
        super().__init__()
        self.order = []

    def observation_space(self, agent):
        return spaces.Discrete(10)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return self.count

    def render(self):
        return self.render_mode

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        self.agent_selection = "a"
        self._each("rewards", 0.0)
        self._each("_cumulative_rewards", 0.0)
        self._each("terminations", False)
        self._each("truncations", False)
        self._tell_masks()

    def step(self, action):
        agent = self.agent_selection
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if self.agents:
                self.agent_selection = following
            return
        assert self.infos[agent]["action_mask"][action]
        self.order.append(agent)
        self.count += 1
        self.rewards = {each: 1.0 if each == agent else 0.1 for each in self.agents}
        if agent == "c" and "b" in self.agents:
            self.terminations["b"] = True
        if self.count == 6:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = following
        self._tell_masks()

    def _each(self, name, value):
        setattr(self, name, dict.fromkeys(self.agents, value))

    def _tell_masks(self):
        mask = np.arange(2) == self.count % 2
        self.infos = {agent: {"action_mask": mask} for agent in self.agents}
