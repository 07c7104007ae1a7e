# SPDX-License-Identifier: Apache-2.0
"""One clock and one set of rules for every contestant; runs in every contestant's own Python.

A trained step is one env transition (after frame skip) that reached the learner, counted once
however many epochs used it. A score counts when 100 training episodes and then 20 fresh greedy
episodes have a mean of `target` or more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

WINDOW, EVALUATION_EPISODES = 100, 20
STAMP_VARIABLE = "PEERS_FIRST_STEP_FILE"
Mark = tuple[float, float]  # seconds, trained steps so far


def since_process_start() -> float:
    """Seconds since the kernel started this process: importing libraries is part of the wait."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def rate_of(marks: Sequence[Mark], warm_up: float, seconds: float) -> float | None:
    """Trained steps/s over the first `seconds` that follow `warm_up` seconds of training."""
    if not marks:
        return None
    begin = marks[0][0] + warm_up
    inside = [mark for mark in marks if begin <= mark[0] <= begin + seconds]
    after = [mark for mark in marks if mark[0] > begin + seconds]
    inside += after[:1]  # an update that began inside the window ends it
    if len(inside) < 2:
        return None
    (begun, before), (ended, trained) = inside[0], inside[-1]
    return (trained - before) / (ended - begun)


def stamp_first_step(environment: Any) -> Any:
    """Let the first step of any process note the time; later steps cost nothing extra."""
    file, step = Path(os.environ[STAMP_VARIABLE]), environment.step

    def first(action: Any) -> Any:
        environment.step = step
        if not file.exists():
            file.write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME)), encoding="utf-8")
        return step(action)

    environment.step = first
    return environment


def mean_return(make_env: Callable[[], Any], act: Callable[[Any], Any], seed: int) -> float:
    """Mean return of fresh episodes, played side by side; `act` maps a batch to greedy actions."""
    import numpy as np

    environments = [make_env() for _ in range(EVALUATION_EPISODES)]
    rows = [each.reset(seed=seed + k)[0] for k, each in enumerate(environments)]
    returns, alive = [0.0] * len(rows), list(range(len(rows)))
    while alive:
        actions = act(np.stack([rows[k] for k in alive]))
        going = []
        for k, action in zip(alive, actions, strict=True):
            rows[k], reward, terminated, truncated, _ = environments[k].step(int(action))
            returns[k] += float(reward)
            if not (terminated or truncated):
                going.append(k)
        alive = going
    return statistics.fmean(returns)


class Referee:
    """Told of first step, updates and episodes; says when to evaluate and when to end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.score, self.seed = arguments.mode == "score", arguments.seed
        self._arguments = arguments
        self._stamp = Path(os.environ[STAMP_VARIABLE])
        self._start: float | None = None
        self._marks: list[Mark] = []
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._mean: float | None = None
        self._episodes, self._next_evaluation = 0, WINDOW
        self._crossed: float | None = None
        self._confirmed: float | None = None
        self._evaluation: float | None = None

    def stepped(self) -> None:
        """An env step has been taken, for those whose environments are in this process."""
        if self._start is None:
            self._start = since_process_start()

    def trained(self, steps: int) -> None:
        """`steps` transitions in all have reached an update."""
        if not self._marks or steps > self._marks[-1][1]:
            self._marks.append((since_process_start(), float(steps)))

    def finished(self, returns: Iterable[float]) -> None:
        """Training episodes that ended."""
        for value in returns:
            self._returns.append(float(value))
            self._episodes += 1
        if self._returns:
            self._mean = statistics.fmean(self._returns)

    def window(self, mean: float, episodes: int) -> None:
        """The same from a contestant that only tells the mean over its last 100 episodes."""
        self._mean, self._episodes = float(mean), int(episodes)

    def wants_evaluation(self) -> bool:
        """Whether training episodes reach the target and the last look is 100 episodes ago."""
        if not self.score or self._confirmed is not None or self._episodes < WINDOW:
            return False
        if self._mean is None or self._mean < self._arguments.target:
            return False
        self._crossed = self._crossed or since_process_start()
        if self._episodes < self._next_evaluation:
            return False
        self._next_evaluation = self._episodes + WINDOW
        return True

    def evaluation_seed(self) -> int:
        """Other episodes than training sees, and other ones each time."""
        return 10_000_000 * (self.seed + 1) + self._episodes

    def evaluated(self, value: float) -> None:
        self._evaluation = value
        if value >= self._arguments.target:
            self._confirmed = since_process_start()

    def is_over(self) -> bool:
        given, now = self._arguments, since_process_start()
        if now >= given.limit or self._confirmed is not None:
            return True
        span = given.warm_up + given.seconds
        return not self.score and bool(self._marks) and now >= self._marks[0][0] + span

    def report(self, samples_per_step: float = 1.0, **more: Any) -> dict[str, Any]:
        """What this run is remembered by."""
        given = self._arguments
        rate = rate_of(self._marks, given.warm_up, math.inf if self.score else given.seconds)
        return {
            "start_seconds": self._start_seconds(),
            "steps_per_second": rate,
            "samples_per_second": None if rate is None else rate * samples_per_step,
            "seconds_to_crossing": self._crossed,
            "seconds_to_target": self._confirmed,
            "evaluation_return": self._evaluation,
            "mean_return_100": self._mean,
            "trained_steps": self._marks[-1][1] if self._marks else 0,
            "wall_seconds": since_process_start(),
            **more,
        }

    def _start_seconds(self) -> float | None:
        if self._start is not None or not self._stamp.exists():
            return self._start
        stamped = float(self._stamp.read_text(encoding="utf-8"))
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - stamped
        return since_process_start() - age


def parse(description: str, settings: Sequence[str]) -> argparse.Namespace:
    """The command line that every adapter shares."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("setting", choices=settings)
    parser.add_argument("--env", default="CartPole-v1", choices=("CartPole-v1", "ALE/Pong-v5"))
    parser.add_argument("--mode", default="rate", choices=("rate", "score"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds after the first update")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the rate's window")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds, from process start")
    parser.add_argument("--target", type=float, default=475.0)
    arguments = parser.parse_args()
    if STAMP_VARIABLE not in os.environ:
        os.environ[STAMP_VARIABLE] = str(Path(tempfile.mkdtemp(prefix="first-step-")) / "stamp")
    return arguments


def tell(report: dict[str, Any]) -> None:
    """The one line that the orchestrator reads; libraries may print before it."""
    print(json.dumps(report), flush=True)
