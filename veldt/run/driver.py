# SPDX-License-Identifier: Apache-2.0
"""One run from start to result: lets the backend work, watches the numbers, decides when to end."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from veldt.algorithms.hill_climbing import TUNING_LOG, Proposal
from veldt.backends import make_backend
from veldt.backends.base import Backend, NodeFailure
from veldt.backends.process.chaos import Chaos
from veldt.dashboard.child import LivePage
from veldt.errors import ConfigurationError
from veldt.options.fields import flat
from veldt.roles.evaluator import Evaluator
from veldt.run.checkpoints import RunCheckpoints, best_policy, newest_weights
from veldt.run.directory import RunDirectory
from veldt.run.league import add_league_result
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.alarms import WeightsAlarm, actors_with_weights
from veldt.telemetry.bottleneck import bottleneck
from veldt.telemetry.progress import Progress, RunGoal, make_progress
from veldt.telemetry.record import RunRecord
from veldt.telemetry.result import RunResult, StoppedBy, lag_entry
from veldt.types import Parameters

_TICK_SECONDS = 0.05
_METRICS_SECONDS = 1.0
_EPISODES_BETWEEN_EVALUATIONS = 100
_CLOSING_EVALUATION_SECONDS = 20.0


class Terminated(KeyboardInterrupt):
    """SIGTERM: end like after Ctrl-C, but as asked for."""


class Run:
    """Drives one plan on one backend. `began` is the process's start on the monotonic clock."""

    def __init__(self, plan: Plan, began: float | None = None, resume: bool = False) -> None:
        options = plan.options
        self._plan, self._options = plan, options
        self._page = LivePage(options)
        self._began = time.monotonic() if began is None else began
        self._directory = RunDirectory(
            options.run_dir, plan.topology.architecture, plan.problem.environment.name, resume
        )
        self._backend: Backend = make_backend(
            options.backend, plan.topology, options.seed, hang_seconds=options.hang_seconds
        )
        self._backend.run_dir = self._directory.path
        self._chaos = Chaos.parse(options.chaos, options.chaos_spares) if options.chaos else None
        take_turns = [
            node.name
            for group in plan.topology.groups()
            if options.backend == "serial" or (len(group.nodes) > 1 and not group.threads)
            for node in group.nodes
        ]
        self._telemetry = RunTelemetry(
            [(node.name, node.kind) for node in plan.topology.nodes], take_turns
        )
        self._result = RunResult(
            plan.architecture,
            plan.problem.environment.name,
            options.backend,
            options.seed,
            run_dir=str(self._directory.path),
        )
        self._progress = make_progress(_goal(plan, self._result), options.quiet, options.json)
        self._record = RunRecord(self._directory.path, plan.topology, self._progress.note)
        on_serial = options.backend == "serial"
        self._checkpoints = RunCheckpoints(
            self._directory.checkpoints,
            self._backend,
            self._telemetry,
            every_seconds=None if on_serial else options.checkpoint_seconds,
            every_env_steps=options.checkpoint_env_steps if on_serial else None,
            note=partial(self._record.note, "checkpoint"),
        )
        if resume:
            try:
                self._checkpoints.begin_from_newest()
            except ConfigurationError:
                self._backend.stop()
                self._directory.close()
                raise
        self._directory.write_config(describe_plan(plan))
        self._alarm = WeightsAlarm(() if options.extra_lag else actors_with_weights(plan.topology))
        self._evaluated_at_episodes = 0
        self._next_metrics = 0.0

    def record_tuning(self, trials: list[Proposal]) -> None:
        """Keep what was tried before the run and why this setting was chosen."""
        with open(self._directory.path / TUNING_LOG, "a", encoding="utf-8") as file:
            for trial in trials:
                file.write(trial.to_json() + "\n")
                self._progress.note(trial.describe())

    def execute(self) -> RunResult:
        """Run to the end. Raises NodeFailure or KeyboardInterrupt after everything is saved."""
        progress, page = self._progress, self._page.serving(self._directory.path)
        failure: BaseException | None = None
        try:
            with progress, _termination_as_interrupt(), page:
                try:
                    self._record.begin()
                    self._backend.start()
                    self._result.stopped_by = self._loop(progress)
                except (NodeFailure, KeyboardInterrupt) as error:
                    interrupted = isinstance(error, KeyboardInterrupt)
                    self._result.stopped_by = "interrupt" if interrupted else "failure"
                    failure = error
                    self._record.keep("end", str(error) or "interrupted")
                self._conclude(progress)
        finally:
            self._backend.stop()
            self._record.close()
            self._directory.close()
        if failure is not None:
            raise failure
        return self._result

    def _loop(self, progress: Progress) -> StoppedBy:
        self._observe()
        while True:
            self._backend.advance(_TICK_SECONDS)
            self._observe()
            elapsed = self._elapsed()
            if self._telemetry.env_steps and self._result.start_seconds is None:
                self._result.start_seconds = elapsed
            progress.update(self._telemetry, elapsed)
            self._report_notes()
            if elapsed >= self._next_metrics:
                self._next_metrics = elapsed + _METRICS_SECONDS
                self._record.tick(self._telemetry, self._backend.restarted)
                self._look_for_lost_weights(elapsed)
            reason = self._reason_to_stop(elapsed)
            if reason is not None:
                return reason
            self._checkpoints.save_if_due(elapsed, self._weights)
            if self._chaos is not None:
                self._chaos.act(self._backend.process_ids(), elapsed)

    def _report_notes(self) -> None:
        while self._backend.notes:
            self._record.note("node", self._backend.notes.pop(0))

    def _look_for_lost_weights(self, elapsed: float) -> None:
        telemetry = self._telemetry
        for text in self._alarm.look(telemetry.snapshots, telemetry.updates, elapsed):
            self._record.note("alarm", text)

    def _observe(self) -> None:
        names = (node.name for node in self._plan.topology.nodes)
        snapshots = dict(zip(names, self._backend.snapshots(), strict=True))
        self._telemetry.update(snapshots, self._elapsed(), self._backend.queue_fills())

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _reason_to_stop(self, elapsed: float) -> StoppedBy | None:
        options = self._options
        if self._target_confirmed():
            self._result.reached_target = True
            self._result.seconds_to_target = self._elapsed()
            return "target"
        budget = options.total_env_steps
        if budget is not None and self._telemetry.env_steps >= budget:
            return "env_steps"
        if options.max_seconds is not None and elapsed >= options.max_seconds:
            return "seconds"
        return None

    def _target_confirmed(self) -> bool:
        """The last 100 training episodes reach the target and fresh ones confirm it: short episodes
        end first, and a mean over training episodes alone flatters."""
        target, telemetry = self._options.target_return, self._telemetry
        if target is None or not telemetry.has_100_returns:
            return False
        if telemetry.mean_return_100 < target:
            return False
        fresh = telemetry.episodes - self._evaluated_at_episodes
        if self._evaluated_at_episodes and fresh < _EPISODES_BETWEEN_EVALUATIONS:
            return False
        self._evaluated_at_episodes = telemetry.episodes
        evaluated = self._evaluate(self._weights(), max_seconds=None)
        self._result.evaluation_return = evaluated
        self._result.mean_return_100 = telemetry.mean_return_100
        return evaluated is not None and evaluated >= target

    def _weights(self) -> Parameters:
        return newest_weights(self._backend, self._plan.topology)

    def _evaluate(self, weights: Parameters, max_seconds: float | None) -> float | None:
        evaluator = Evaluator(
            self._plan.problem.environment,
            self._plan.topology.network,
            seed=_evaluation_seed(self._options.seed, weights.version),
            num_episodes=self._options.evaluation_episodes,
        )
        try:
            returns = evaluator.returns(weights.vector, max_seconds)
        finally:
            evaluator.close()
        return float(returns.mean()) if returns.size else None

    def _conclude(self, progress: Progress) -> None:
        """Last numbers, last checkpoint, result.json; also after an interrupt or a failure."""
        result, telemetry = self._result, self._telemetry
        self._observe()
        weights = self._weights()
        result.parameters_sha256 = hashlib.sha256(weights.vector.tobytes()).hexdigest()
        result.best_policy = best_policy(self._backend, self._plan.topology)
        add_league_result(result, self._plan, self._backend)
        self._checkpoints.save_last(weights, nodes_are_alive=result.stopped_by != "failure")
        ended_well = result.stopped_by in ("env_steps", "seconds")
        if ended_well and self._options.evaluation_episodes:
            self._backend.stop()  # the cores are the evaluation's now
            limit = None if self._options.backend == "serial" else _CLOSING_EVALUATION_SECONDS
            result.evaluation_return = self._evaluate(weights, limit)
        result.env_steps, result.updates = telemetry.env_steps, telemetry.updates
        result.frames = result.env_steps * self._plan.problem.spec.frames_per_step
        result.wall_seconds = self._elapsed()
        result.env_steps_per_second = telemetry.steady_rate()
        if not result.reached_target:
            result.mean_return_100 = telemetry.mean_return_100 if telemetry.episodes else None
        result.episodes, result.dropped = telemetry.episodes, telemetry.dropped
        result.aborted_episodes = telemetry.aborted_episodes
        result.policy_lag = lag_entry(telemetry.lag)
        result.restarts = self._backend.restarts
        result.bottleneck = bottleneck(
            telemetry, self._plan.topology, self._options, self._plan.config
        )
        result.stage_shares = telemetry.stage_shares()
        result.save(self._directory.result)
        self._record.tick(telemetry, self._backend.restarted, ended=True)
        progress.finish(result)


def _goal(plan: Plan, result: RunResult) -> RunGoal:
    return RunGoal(
        result.architecture,
        result.env,
        result.backend,
        result.seed,
        plan.options.target_return,
        plan.options.total_env_steps,
        plan.options.max_seconds,
    )


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The full resolved configuration, as written to config.json."""
    options = {entry.name: getattr(plan.options, entry.name) for entry in fields(plan.options)}
    options["env"] = plan.problem.environment.name
    if callable(options["network"]):
        function = getattr(options["network"], "func", options["network"])
        options["network"] = f"{function.__module__}:{function.__qualname__}"
    options["num_actors"] = plan.problem.num_actors
    options["envs_per_actor"] = plan.problem.envs_per_actor
    options["reward_clip"] = plan.problem.environment.reward_clip
    return {
        "architecture": plan.architecture,
        "options": options,
        "config": flat(plan.config),
        "device": plan.problem.compute.device,
        "parameters": plan.topology.num_weights,
    }


def _evaluation_seed(seed: int, version: int) -> int:
    """Other episodes than the actors see, and other ones each time."""
    return (seed * 1_000_003 + version * 7919 + 12_345) % 2**31


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C does: last checkpoint, result, nothing left behind."""

    def interrupt(*_: object) -> None:
        raise Terminated

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: the host program owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
