# SPDX-License-Identifier: Apache-2.0
"""Fresh episodes without exploration: how they are played, and when they end a run.

A target return is reached when the mean of fresh episodes reaches it. They are played when the last
100 training episodes reach the target. Those lag behind the policy and include its exploration, so
the target is also checked in between, for at most a fifth of one core's time; a check that succeeds
is repeated with other episodes, since it may have been luck. These checks depend on the clock, so
there are none on a deterministic backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from veldt.environments import EnvironmentFactory
from veldt.networks import NetworkFactory, Player
from veldt.resources import usable_cores
from veldt.telemetry.aggregate import RunTelemetry

_MAX_ROWS = 30_000  # longer than any episode of a standard task, so that evaluation always ends
_EPISODES_BETWEEN_EVALUATIONS = 100
_CHECKS_SHARE = 0.2  # of the time
_FIRST_CHECK_SECONDS = 0.5  # after the first update: small tasks are solved within a second
_LEAST_BETWEEN_CHECKS_SECONDS = 0.5
_CHECK_SECONDS = 4.0  # or a twentieth of the run so far: a poor policy may never end an episode
_LONGEST_CHECK_SECONDS = 32.0
_LONGEST_CHECK_SHARE = 0.05

Play = Callable[[int, float | None], np.ndarray]
"""Returns of fresh episodes of attempt N with the newest weights, within a number of seconds."""


def _whole_games(environment: EnvironmentFactory) -> EnvironmentFactory:
    """The environment without what only eases learning: clipped rewards, lives as episodes. Atari
    games are stepped by a quarter of the cores, because training waits for them."""
    options = tuple(entry for entry in environment.options if entry[0] != "episodic_life")
    threads = max(1, usable_cores() // 4)
    if environment.is_atari and threads > 1 and "num_threads" not in dict(options):
        options = (*options, ("num_threads", threads))
    return replace(environment, options=options, reward_clip=None)


class Evaluator:
    """Plays one episode in each of `num_episodes` environments, so that each counts exactly once
    and short episodes are not over-represented. Actions are the likeliest unless `stochastic`."""

    def __init__(
        self,
        environment: EnvironmentFactory,
        network: NetworkFactory,
        seed: int,
        num_episodes: int = 20,
        render: bool = False,
        stochastic: bool = False,
    ) -> None:
        self._environment = _whole_games(environment).make(num_episodes, seed, render=render)
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
            if self._render and running[0] and (frame := environment.render()) is not None:
                self.frames.append(frame)
            step = environment.step(action)
            totals += np.where(running, step.reward, 0.0)
            running &= ~(step.terminated | step.truncated)
            memory.received(step.reward)
            if not running.any() or (deadline is not None and time.monotonic() > deadline):
                break
        return totals[~running]

    def close(self) -> None:
        self._environment.close()


@dataclass
class Target:
    """Whether one run has reached its target return."""

    target_return: float
    num_episodes: int
    checks_by_clock: bool
    play: Play | None
    """None: no episode can be played here, and training episodes decide alone."""
    evaluation_return: float | None = None
    """Mean return of the last complete evaluation."""
    _next_episode: int = 0
    _next_check: float | None = None
    """None before the first update."""
    _check_seconds: float = _CHECK_SECONDS
    """Doubles after each check whose episodes did not end, as those of Pong do not."""

    def is_reached(
        self, telemetry: RunTelemetry, elapsed_seconds: float, seconds_left: float | None
    ) -> bool:
        enough_episodes = telemetry.has_100_returns and telemetry.episodes >= self._next_episode
        if enough_episodes and telemetry.mean_return_100 >= self.target_return:
            self._next_episode = telemetry.episodes + _EPISODES_BETWEEN_EVALUATIONS
            return self._holds(0, seconds_left)
        if not self.checks_by_clock or telemetry.updates == 0:
            return False
        if self._next_check is None:
            self._next_check = elapsed_seconds + _FIRST_CHECK_SECONDS
        if elapsed_seconds < self._next_check:
            return False
        began = time.monotonic()
        limit = max(self._check_seconds, _LONGEST_CHECK_SHARE * elapsed_seconds)
        limit = limit if seconds_left is None else min(limit, seconds_left)
        reached = self._holds(0, limit) and self._holds(1, seconds_left)
        pause = max(_LEAST_BETWEEN_CHECKS_SECONDS, (time.monotonic() - began) / _CHECKS_SHARE)
        self._next_check = elapsed_seconds + pause
        return reached

    def _holds(self, attempt: int, seconds: float | None) -> bool:
        """Whether fresh episodes reach the target. If some did not end in time nothing is known,
        because the longest would be missing from the mean."""
        if self.play is None:
            return True
        returns = self.play(attempt, seconds)
        if returns.size < self.num_episodes:
            self._check_seconds = min(2.0 * self._check_seconds, _LONGEST_CHECK_SECONDS)
            return False
        self.evaluation_return = float(returns.mean())
        return self.evaluation_return >= self.target_return
