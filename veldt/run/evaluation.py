# SPDX-License-Identifier: Apache-2.0
"""Fresh episodes without exploration: how they are played, and when they end a run.

A target return is reached when the mean of fresh episodes reaches it. They are played when the last
100 training episodes reach the target. Those lag behind the policy and include its exploration, so
the target is also checked in between, for at most a fifth of one core's time; a check that succeeds
is repeated with other episodes, since it may have been luck. These checks depend on the clock, so
there are none on a deterministic backend. On the others episodes are played in a thread, while the
run goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from veldt.backends.background import Background
from veldt.environments import EnvironmentFactory
from veldt.networks import NetworkFactory, Player
from veldt.resources import usable_cores
from veldt.telemetry.aggregate import RunTelemetry
from veldt.types import Parameters

_MAX_ROWS = 30_000  # longer than any episode of a standard task, so that evaluation always ends
_EPISODES_BETWEEN_EVALUATIONS = 100
_CHECKS_SHARE = 0.2  # of the time
_FIRST_CHECK_SECONDS = 0.5  # after the first update: small tasks are solved within a second
_LEAST_BETWEEN_CHECKS_SECONDS = 0.5
_CHECK_SECONDS = 4.0  # or a twentieth of the run so far: a poor policy may never end an episode
_LONGEST_CHECK_SECONDS = 32.0
_LONGEST_CHECK_SHARE = 0.05
_STUCK_SECONDS = 1.0  # after its limit an evaluation has no result

Play = Callable[[int, float | None], Callable[[], np.ndarray | None]]
"""Plays fresh episodes of attempt N with the newest weights, within a number of seconds. The
function it returns gives their returns, or None until they have ended."""


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

    def returns(
        self, vector: np.ndarray, is_over: Callable[[], bool] = lambda: False
    ) -> np.ndarray:
        """Returns of the episodes that ended before `is_over`, which is asked at every step."""
        player, environment = self._player, self._environment
        player.load(vector)
        environment.reset()
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
            if not running.any() or is_over():
                break
        return totals[~running]

    def close(self) -> None:
        self._environment.close()


class Evaluation:
    """Fresh episodes of some weights, played in a thread until `max_seconds` have passed."""

    def __init__(
        self,
        evaluator: Callable[[], Evaluator],
        weights: Parameters,
        env_steps: int,
        max_seconds: float | None,
    ) -> None:
        """`env_steps` is the age of the weights."""
        self.weights, self.env_steps = weights, env_steps
        self._make = evaluator
        self._deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
        self._work = Background(self._play)

    def _play(self) -> np.ndarray:
        evaluator = self._make()
        try:
            return evaluator.returns(self.weights.vector, lambda: time.monotonic() > self._deadline)
        finally:
            evaluator.close()

    def done(self, seconds: float = 0.0) -> bool:
        """Whether it ends within `seconds`."""
        return self._work.done(seconds)

    def returns(self) -> np.ndarray | None:
        """Of the episodes that ended in time; None while they are played."""
        if self._work.done():
            return self._work.result()
        # An environment may take any time to reset.
        return np.empty(0) if time.monotonic() > self._deadline + _STUCK_SECONDS else None

    def end(self) -> None:
        """End it with the step that is being made."""
        self._deadline = min(self._deadline, time.monotonic())


@dataclass
class Target:
    """Whether one run has reached its target return."""

    target_return: float
    num_episodes: int
    checks_by_clock: bool
    play: Play | None
    """None: no episode can be played here, and training episodes decide alone."""
    _returns: Callable[[], np.ndarray | None] | None = None
    """Of the evaluation in progress."""
    _attempt: int = 0
    _by_clock: bool = False
    _began: float = 0.0
    _next_episode: int = 0
    _next_check: float | None = None
    """None before the first update."""
    _check_seconds: float = _CHECK_SECONDS
    """Doubles after each check whose episodes did not end, as those of Pong do not."""

    @property
    def is_checking(self) -> bool:
        """Whether an evaluation is in progress."""
        return self._returns is not None

    def is_reached(
        self, telemetry: RunTelemetry, elapsed_seconds: float, seconds_left: float | None
    ) -> bool:
        if self._returns is None and not self._begin(telemetry, elapsed_seconds, seconds_left):
            return False
        if self.play is None:
            return True
        assert self._returns is not None
        returns = self._returns()
        if returns is None:
            return False
        self._returns = None
        holds = self._holds(returns)
        if not self._by_clock:
            return holds
        if holds and self._attempt == 0:
            self._attempt, self._returns = 1, self.play(1, seconds_left)
            return self.is_reached(telemetry, elapsed_seconds, seconds_left)
        took = time.monotonic() - self._began
        pause = max(_LEAST_BETWEEN_CHECKS_SECONDS, took / _CHECKS_SHARE)
        self._next_check = elapsed_seconds + pause
        return holds

    def _begin(
        self, telemetry: RunTelemetry, elapsed_seconds: float, seconds_left: float | None
    ) -> bool:
        """Begin an evaluation if one is due."""
        limit = seconds_left
        enough_episodes = telemetry.has_100_returns and telemetry.episodes >= self._next_episode
        self._by_clock = not enough_episodes or telemetry.mean_return_100 < self.target_return
        if self._by_clock:
            if not self.checks_by_clock or telemetry.updates == 0:
                return False
            if self._next_check is None:
                self._next_check = elapsed_seconds + _FIRST_CHECK_SECONDS
            if elapsed_seconds < self._next_check:
                return False
            limit = max(self._check_seconds, _LONGEST_CHECK_SHARE * elapsed_seconds)
            limit = limit if seconds_left is None else min(limit, seconds_left)
        else:
            self._next_episode = telemetry.episodes + _EPISODES_BETWEEN_EVALUATIONS
        self._attempt, self._began = 0, time.monotonic()
        self._returns = None if self.play is None else self.play(0, limit)
        return True

    def _holds(self, returns: np.ndarray) -> bool:
        """Whether fresh episodes reach the target. If some did not end in time nothing is known,
        because the longest would be missing from the mean."""
        if returns.size < self.num_episodes:
            self._check_seconds = min(2.0 * self._check_seconds, _LONGEST_CHECK_SECONDS)
            return False
        return float(returns.mean()) >= self.target_return
