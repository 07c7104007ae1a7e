# SPDX-License-Identifier: Apache-2.0
"""The evaluator: fresh episodes with given weights and no exploration."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from veldt.environments import EnvironmentFactory
from veldt.environments.parameters import Values
from veldt.networks import NetworkFactory, Player
from veldt.resources import usable_cores

_MAX_ROWS = 30_000  # longer than any episode of a standard task, so that evaluation always ends


def whole_games(environment: EnvironmentFactory) -> EnvironmentFactory:
    """The environment without what only eases learning: clipped rewards, lives as episodes. Long
    games are stepped by a quarter of the cores: somebody waits for them."""
    options = tuple(entry for entry in environment.options if entry[0] != "episodic_life")
    threads = max(1, usable_cores() // 4)
    if environment.is_atari and threads > 1 and "num_threads" not in dict(options):
        options = (*options, ("num_threads", threads))
    return replace(environment, options=options, reward_clip=None)


class Evaluator:
    """Plays one episode in each of `num_episodes` environments side by side, the likeliest action
    each time unless `stochastic`. Short episodes cannot crowd out long ones: every environment
    counts exactly once."""

    def __init__(
        self,
        environment: EnvironmentFactory,
        network: NetworkFactory,
        seed: int,
        num_episodes: int = 20,
        render: bool = False,
        stochastic: bool = False,
        parameters: Values | None = None,
    ) -> None:
        """`parameters`: what a run has told its environments."""
        self._environment = whole_games(environment).make(num_episodes, seed, render=render)
        if parameters:
            self._environment.set_parameters(parameters)
        self._player = Player(network.in_float32().blank(), seed)
        self.frames: list[np.ndarray] = []
        self._render, self._deterministic = render, not stochastic

    def returns(self, vector: np.ndarray, max_seconds: float | None = None) -> np.ndarray:
        """Returns of the episodes that ended within `max_seconds`, all of them if it is None."""
        player, environment = self._player, self._environment
        player.load(vector)
        environment.reset()
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        running = np.ones(environment.num_envs, bool)
        totals = np.zeros(environment.num_envs)
        memory = player.start(environment.num_envs)
        for _ in range(_MAX_ROWS):
            rows, first = environment.observations, environment.first
            action = player.act(rows, memory, first, self._deterministic)
            if self._render:
                self._keep_frame(running)
            step = environment.step(action)
            totals += np.where(running, step.reward, 0.0)
            running &= ~(step.terminated | step.truncated)
            memory.received(step.reward)
            if not running.any() or (deadline is not None and time.monotonic() > deadline):
                break
        return totals[~running]

    def _keep_frame(self, running: np.ndarray) -> None:
        if running[0]:
            frame = self._environment.render()
            if frame is not None:
                self.frames.append(frame)

    def close(self) -> None:
        self._environment.close()
