# SPDX-License-Identifier: Apache-2.0
"""One run from start to result: lets the backend work, watches the numbers, decides when to end."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from veldt.backends import make_backend
from veldt.backends.base import Backend, BackendOptions
from veldt.callbacks import Callback, CallbackFailure, Callbacks
from veldt.dashboard.child import LivePage
from veldt.errors import ConfigurationError
from veldt.run.best import BEST, BestWeights, Score, training_score
from veldt.run.budget import Budget
from veldt.run.checkpoints import RunCheckpoints, best_policy, newest_weights
from veldt.run.description import (
    check_spaces,
    choices,
    choices_line,
    goal_of,
    telemetry_of,
)
from veldt.run.directory import directory_of
from veldt.run.evaluation import Evaluator
from veldt.run.league import add_league_result, keep_best_of_league
from veldt.run.output import stream
from veldt.run.plan import Plan
from veldt.run.repeating import config_of, first_result
from veldt.run.signals import OutOfTime, Signals
from veldt.run.summary import judge_best, summarise
from veldt.run.surroundings import Surroundings
from veldt.run.target import Target
from veldt.run.timeline import TimelineRecorder
from veldt.telemetry.log_files import wants_events
from veldt.telemetry.progress import Progress, make_progress
from veldt.telemetry.record import RunRecord
from veldt.telemetry.result import RunResult, StoppedBy
from veldt.types import Parameters

_METRICS_SECONDS = 1.0
_CLOSING_EVALUATION_SECONDS = 20.0


class Run:
    """Drives one plan on one backend. `began` is the process's start on the monotonic clock."""

    def __init__(
        self,
        plan: Plan,
        began: float | None = None,
        resume: bool = False,
        base: Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`base` is where a relative run directory begins, if it is not here any more."""
        options = plan.options
        self._plan, self._options = plan, options
        self._page, self._callbacks = LivePage(options), Callbacks(callbacks)
        self._began = time.monotonic() if began is None else began
        self._directory = directory_of(plan, resume, base)
        self._backend: Backend = make_backend(
            options.backend,
            plan.topology,
            options.seed,
            BackendOptions(
                hang_seconds=float(os.environ.get("VELDT_HANG_SECONDS", 60.0)),
                timeline_seconds=options.timeline or 0.0,
                total_env_steps=options.total_env_steps,
                checkpoint_env_steps=options.checkpoint_options.env_steps,
            ),
        )
        self._backend.run_dir = self._directory.path
        self._budget = Budget(options.total_env_steps)
        self._timeline = TimelineRecorder(plan, self._backend, self._directory.path)
        self._telemetry = telemetry_of(plan)
        self._result = first_result(plan, self._directory.shown)
        self._progress = make_progress(goal_of(plan), options.quiet, options.json, stream())
        path, has_events = self._directory.path, wants_events(options.trackers)
        self._record = RunRecord(path, plan.topology, self._progress.note, has_events)
        self._around = Surroundings(plan, self._backend, path, self._record)
        on_serial, note = options.backend == "serial", partial(self._record.note, "checkpoint")
        self._checkpoints = RunCheckpoints(
            self._directory.checkpoints,
            self._backend,
            self._telemetry,
            every_seconds=None if on_serial else options.checkpoint_options.seconds,
            every_env_steps=options.checkpoint_options.env_steps if on_serial else None,
            keep=options.checkpoint_options.keep,
            saved=self._callbacks.checkpoint,
            note=note,
        )
        self._best = BestWeights(path / BEST, note)
        self._begin_directory(resume)
        self._signals = Signals()
        self._nodes_are_alive = False
        self._target = self._make_target()
        self._next_metrics = 0.0

    def _begin_directory(self, resume: bool) -> None:
        path, plan = self._directory.path, self._plan
        try:
            if resume:
                check_spaces(path, plan)
                self._checkpoints.begin_from_newest(plan.topology)
                self._best.load()
                self._around.curriculum.load()
            self._directory.write_config(config_of(plan, self._result.command, path))
        except ConfigurationError:
            self._backend.stop()
            self._directory.close()
            raise

    def execute(self) -> RunResult:
        """Run to the end. Whatever ends it early is raised after everything is saved."""
        progress, page = self._progress, self._page.serving(self._directory.path)
        failure: BaseException | None = None
        try:
            with progress, self._signals, page, self._around.watched():
                try:
                    self._record.begin()
                    progress.begin(choices_line(self._plan), choices(self._plan))
                    self._start()
                    self._result.stopped_by = self._loop(progress)
                except (Exception, KeyboardInterrupt) as error:
                    interrupted = isinstance(error, KeyboardInterrupt)
                    self._result.stopped_by = "interrupt" if interrupted else "failure"
                    failure = error
                    self._nodes_are_alive &= interrupted or isinstance(error, CallbackFailure)
                    self._record.keep("end", str(error) or "interrupted")
                self._conclude(progress)
        finally:
            self._backend.stop()
            self._record.close()
            self._directory.close()
        if failure is not None:
            raise failure
        return self._result

    def _start(self) -> None:
        self._callbacks.start(self._around.curriculum)
        on_ray = self._options.backend == "ray"  # which may wait minutes for room in a cluster
        with self._signals.interruptible() if on_ray else nullcontext():
            self._backend.start()
        self._nodes_are_alive = True

    def _loop(self, progress: Progress) -> StoppedBy:
        self._observe()
        while True:
            self._signals.check()
            self._backend.advance(self._budget.tick_seconds(self._telemetry))
            self._observe()
            if self._budget.is_spent(self._telemetry):
                self._backend.pause()
            elapsed = self._elapsed()
            self._time_the_start(elapsed)
            progress.update(self._telemetry, elapsed)
            self._report_notes()
            self._callbacks.episodes(self._telemetry.fresh_episodes)
            self._attempt("timeline", lambda: self._timeline.write_if_due(self._telemetry))
            if elapsed >= self._next_metrics:
                self._next_metrics = elapsed + _METRICS_SECONDS
                self._around.look(self._telemetry)
                self._record.tick(self._telemetry, self._backend.restarted)
                self._best.watch(self._telemetry, self._weights)
                self._best.write_if_due(elapsed)
                if self._callbacks.progress(self._telemetry.env_steps, self._telemetry.metrics()):
                    return "callback"
            elif self._options.backend == "serial":  # where the clock must not decide
                self._best.watch(self._telemetry, self._weights)
            if reason := self._reason_to_stop(elapsed):
                return reason
            self._checkpoints.save_if_due(elapsed, self._weights)

    def _time_the_start(self, elapsed: float) -> None:
        result = self._result
        if self._telemetry.env_steps and result.start_seconds is None:
            result.start_seconds = elapsed
        if self._telemetry.updates and result.first_update_seconds is None:
            result.first_update_seconds = elapsed

    def _report_notes(self) -> None:
        while self._backend.notes:
            self._record.note("node", self._backend.notes.pop(0))

    def _observe(self) -> None:
        names = (node.name for node in self._plan.topology.nodes)
        snapshots = dict(zip(names, self._backend.snapshots(), strict=True))
        self._telemetry.update(snapshots, self._elapsed(), self._backend.queue_fills())

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _reason_to_stop(self, elapsed: float) -> StoppedBy | None:
        options = self._options
        if self._target_reached(elapsed):
            self._result.reached_target = True
            self._result.seconds_to_target = self._elapsed()
            return "target"
        if self._budget.is_spent(self._telemetry):
            return "env_steps"
        if options.max_seconds is not None and elapsed >= options.max_seconds:
            return "seconds"
        return None

    def _make_target(self) -> Target | None:
        options, is_external = self._options, self._plan.problem.environment.is_external
        if options.target_return is None:
            return None
        return Target(
            options.target_return,
            options.evaluation_episodes,
            has_looks=options.backend != "serial" and not is_external,
            play=None if is_external else self._play,
        )

    def _play(self, attempt: int, seconds: float | None) -> np.ndarray:
        return self._evaluate(self._weights(), self._telemetry.env_steps, seconds, attempt)

    def _target_reached(self, elapsed: float) -> bool:
        if self._target is None:
            return False
        limit = self._options.max_seconds
        left = None if limit is None else max(0.0, limit - elapsed)
        reached = self._target.is_reached(self._telemetry, elapsed, left)
        if reached:
            self._result.mean_return_100 = self._telemetry.mean_return_100
            self._result.env_steps_to_target = self._telemetry.env_steps
        self._result.evaluation_return = self._target.evaluation_return
        return reached

    def _weights(self) -> Parameters:
        return newest_weights(self._backend, self._plan.topology)

    def _evaluate(
        self, weights: Parameters, env_steps: int, max_seconds: float | None, attempt: int = 0
    ) -> np.ndarray:
        """Returns of the fresh episodes that ended within `max_seconds`. Signals and the limit
        strike at once: an environment may take very long to reset."""
        try:
            with self._signals.interruptible(max_seconds):
                evaluator = Evaluator(
                    self._plan.problem.environment,
                    self._plan.topology.network,
                    seed=_evaluation_seed(self._options.seed, weights.version, attempt),
                    num_episodes=self._options.evaluation_episodes,
                    parameters=self._around.curriculum.values,
                )
                try:
                    returns = evaluator.returns(weights.vector, max_seconds)
                finally:
                    evaluator.close()
        except OutOfTime:
            return np.empty(0)
        # Without the longest episodes, those that ended early would be the judges.
        if returns.size == self._options.evaluation_episodes:
            self._best.evaluated(Score.of(returns), weights, env_steps)
        self._callbacks.evaluation(returns, env_steps)
        return returns

    def _conclude(self, progress: Progress) -> None:
        """Last numbers, last checkpoint, result.json; also after an interrupt or a failure. What
        cannot be done is said, and the rest is done all the same."""
        self._attempt("last numbers", self._observe)
        self._attempt("timeline", lambda: self._timeline.write(self._telemetry))
        self._attempt("last checkpoint", self._save_last)
        self._attempt("league", self._measure_league)
        if self._result.stopped_by in ("env_steps", "seconds", "callback"):
            self._attempt("evaluation", self._evaluate_last)
        self._attempt("best weights", self._judge_best)
        self._attempt("summary", self._summarise)
        self._attempt("result.json", lambda: self._result.save(self._directory.result))
        restarted = self._backend.restarted
        self._attempt("status", lambda: self._record.tick(self._telemetry, restarted, ended=True))
        progress.finish(self._result)

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._record.note("end", f"{what}: {type(error).__name__}: {error}")

    def _save_last(self) -> None:
        result, weights = self._result, self._weights()
        result.parameters_sha256 = hashlib.sha256(weights.vector.tobytes()).hexdigest()
        result.best_policy = best_policy(self._backend, self._plan.topology)
        self._checkpoints.save_last(weights, self._nodes_are_alive)
        self._best.watch(self._telemetry, lambda: weights)

    def _measure_league(self) -> None:
        add_league_result(self._result, self._plan, self._backend)

    def _evaluate_last(self) -> None:
        if not self._options.evaluation_episodes or self._plan.problem.environment.is_external:
            return  # nobody can play there but its clients
        weights, env_steps = self._weights(), self._telemetry.env_steps
        self._backend.stop()  # the cores are the evaluation's now
        limit = None if self._options.backend == "serial" else _CLOSING_EVALUATION_SECONDS
        best, age, now = self._best.weights, self._best.env_steps, training_score(self._telemetry)
        # The best by training episodes has to prove it where the end is a good deal worse.
        contested = now is not None and self._best.has_dropped(now)
        try:
            if contested and best is not None and age is not None:
                self._evaluate(best, age, limit)
            returns = self._evaluate(weights, env_steps, limit)
            self._result.evaluation_return = float(returns.mean()) if returns.size else None
        except KeyboardInterrupt:  # no reason to lose the result as well
            self._record.note("end", "interrupted during the closing evaluation")

    def _judge_best(self) -> None:
        if keep_best_of_league(self._plan, self._directory.path, self._best):
            return
        self._best.write()
        judge_best(self._result, self._best, training_score(self._telemetry))

    def _summarise(self) -> None:
        self._result.wall_seconds = self._elapsed()
        self._result.restarts = self._backend.restarts
        summarise(self._result, self._telemetry, self._plan)


def _evaluation_seed(seed: int, version: int, attempt: int) -> int:
    """Other episodes than the actors see, and other ones each time."""
    return (seed * 1_000_003 + version * 7919 + attempt * 104_729 + 12_345) % 2**31
