# SPDX-License-Identifier: Apache-2.0
"""One run from start to result: advances the backend, records what happens and decides its end."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from veldt.backends import BACKENDS, make_backend
from veldt.backends.base import BackendOptions
from veldt.callbacks import Callback, CallbackFailure, Callbacks, Sidecar
from veldt.environments.tasks import scores_by_task
from veldt.errors import ConfigurationError, text_of
from veldt.files import write_atomically
from veldt.run.best import BEST, BestWeights, Score, training_score
from veldt.run.checkpoints import RunCheckpoints, best_policy, newest_weights
from veldt.run.description import (
    changed_space,
    choices,
    choices_line,
    describe_plan,
    display,
    first_result,
)
from veldt.run.directory import CHECKPOINTS, RESULT_FILE, RunDirectory
from veldt.run.evaluation import Evaluation, Evaluator, Target
from veldt.run.external import ClientLog
from veldt.run.plan import Plan
from veldt.run.process import OutOfTime, Signals, time_limit
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.diagnosis import bottleneck
from veldt.telemetry.log_files import (
    EVALUATION,
    EVALUATION_ENV_STEPS,
    evaluations_in,
    log_to_stderr,
    wants_events,
)
from veldt.telemetry.machine_meter import MachineMeter
from veldt.telemetry.progress import Progress, number
from veldt.telemetry.record import TIMELINE_FILE, EventSort, RunRecord, timeline
from veldt.telemetry.result import RunResult, StoppedBy, dumps, lag_entry
from veldt.types import Parameters

_METRICS_SECONDS = 1.0
_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS = 0.05, 0.001
_FAST_ENV_STEPS_PER_SECOND = 200_000  # assumed before the run's own rate is known
_CLOSING_EVALUATION_SECONDS = 20.0
_AFTER_LIMIT_SECONDS = 2.0  # of a closing evaluation that begins with the last weights
_LAST_SHARE = 0.25  # of --max-seconds, in which longer ones are played beside the run
_LAST_CAPTURE_SECONDS = 3.0  # for actors within a long step
_GRACE_SECONDS = 5.0  # in which environments close
_LEAST_SECONDS = 0.5  # where the limit has passed


class Run:
    """Drives one plan on one backend."""

    def __init__(
        self,
        plan: Plan,
        began: float | None = None,
        resume: bool = False,
        base: Path | None = None,
        local: Path | None = None,
        callbacks: Sequence[Callback] = (),
        sidecars: Sequence[Sidecar] = (),
    ) -> None:
        """Make the run directory and the backend; nothing starts yet. `began` is the start of the
        process on the monotonic clock; for `base` and `local` see RunDirectory."""
        options = plan.options
        self._plan, self._options, self._backend_spec = plan, options, BACKENDS[options.backend]
        self._callbacks, self._sidecars = Callbacks(callbacks), sidecars
        self._is_deterministic = self._backend_spec.is_deterministic
        self._began = time.monotonic() if began is None else began
        architecture, environment = plan.topology.architecture, plan.problem.environment
        self._directory = RunDirectory(
            options.run_dir, architecture, environment.name, resume, base, local
        )
        path, period = self._directory.path, options.evaluation_period()
        self._period = period
        self._backend = make_backend(
            options.backend,
            plan.topology,
            options.seed,
            BackendOptions(
                hang_seconds=float(os.environ.get("VELDT_HANG_SECONDS", 60.0)),
                timeline_seconds=options.timeline or 0.0,
                total_env_steps=options.total_env_steps,
                checkpoint_env_steps=options.checkpoint_options.env_steps,
                evaluation_env_steps=int(period[0]) if period and not period[1] else None,
            ),
        )
        self._backend.run_dir = path
        self._telemetry = _telemetry_of(plan, self._backend_spec.runs_in_one_thread)
        self._result = first_result(plan, self._directory.shown)
        self._progress = display(plan)
        self._record = RunRecord(
            path, plan.topology, self._progress.note, wants_events(options.trackers)
        )
        self._clients = ClientLog(environment, self._record.note)
        self._machine = MachineMeter()
        note, saving = partial(self._report, "checkpoint"), options.checkpoint_options
        self._checkpoints = RunCheckpoints(
            path / CHECKPOINTS,
            self._backend,
            self._telemetry,
            every_seconds=None if self._is_deterministic else saving.seconds,
            every_env_steps=saving.env_steps if self._is_deterministic else None,
            keep=saving.keep,
            saved=self._callbacks.checkpoint,
            note=note,
        )
        self._best = BestWeights(path / BEST, note, plan.topology.outcome is None)
        self._signals = Signals()
        self._nodes_are_alive = False
        self._evaluation: Evaluation | None = None
        """The last one that has begun."""
        self._in_curve: Evaluation | None = None
        """One of `evaluate_every` that is being played."""
        self._target: Target | None = None
        if options.target_return is not None:
            self._target = Target(
                options.target_return,
                options.evaluation_episodes,
                checks_by_clock=not (self._is_deterministic or environment.is_external),
                play=None if environment.is_external else self._play,
            )
        self._next_metrics = 0.0
        self._needs_timeline = options.timeline is not None
        begun = 0
        try:
            if resume:
                if changed := changed_space(path, plan.problem.spec):
                    what, before, now = changed
                    raise ConfigurationError(
                        f"the {what} of the environment '{environment.name}' has changed since the"
                        f" run began, from {before} to {now}; train anew with another --run-dir"
                    )
                begun = self._checkpoints.begin_from_newest(plan.topology)
                self._best.load()
                self._result.evaluations = evaluations_in(path, begun)
            if self._period is not None:
                if environment.is_external:
                    raise ConfigurationError("evaluate_every needs an environment, not external:")
                every, by_clock = self._period
                self._next_of_curve = every if by_clock else (begun // every + 1) * every
            config = {**describe_plan(plan), "command": self._result.command}
            self._directory.write_config(config)
        except ConfigurationError:
            self._backend.stop()
            self._directory.close()
            raise

    def execute(self) -> RunResult:
        """Run to the end. An exception that ends it early is raised once all is saved."""
        progress, alarm = self._progress, partial(self._record.note, "alarm")
        failure: BaseException | None = None
        try:
            with ExitStack() as stack:
                stack.callback(self._machine.close)
                stack.enter_context(self._signals)
                for sidecar in self._sidecars:
                    stack.enter_context(sidecar.running(self._directory.path, alarm))
                try:
                    self._record.begin()
                    progress.begin(choices_line(self._plan), choices(self._plan))
                    self._start()
                    self._result.stopped_by = self._loop(progress)
                except OutOfTime:
                    self._result.stopped_by = "seconds"
                except (Exception, KeyboardInterrupt) as error:
                    interrupted = isinstance(error, KeyboardInterrupt)
                    self._result.stopped_by = "interrupt" if interrupted else "failure"
                    failure = error
                    self._nodes_are_alive &= interrupted or isinstance(error, CallbackFailure)
                    self._record.keep("end", str(error) or "interrupted")
                self._conclude(progress)
        finally:
            if self._evaluation is not None:
                self._evaluation.end()
                self._evaluation.done(_LEAST_SECONDS)
            self._stop_nodes()
            self._record.close()
            self._directory.close()
        if failure is not None:
            raise failure
        return self._result

    def _start(self) -> None:
        """Start all nodes. Raises OutOfTime if that takes longer than the run may."""
        self._callbacks.start()
        limit, is_here = self._options.max_seconds, self._backend_spec.stays_on_this_machine
        left = None if limit is None else limit - self._elapsed()
        if left is not None and left <= 0.0:
            raise OutOfTime
        # A cluster may take minutes to make room for all nodes, and so may a busy machine.
        with time_limit(left), nullcontext() if is_here else self._signals.interruptible():
            self._backend.start()
        self._nodes_are_alive = True

    def _loop(self, progress: Progress) -> StoppedBy:
        self._observe()
        while True:
            self._signals.check()
            self._backend.advance(self._tick_seconds())
            self._observe()
            if self._budget_is_spent():
                self._backend.pause()
            elapsed, result = self._elapsed(), self._result
            if self._telemetry.env_steps and result.start_seconds is None:
                result.start_seconds = elapsed
            if self._telemetry.updates and result.first_update_seconds is None:
                result.first_update_seconds = elapsed
            progress.update(self._telemetry, elapsed)
            self._evaluate_if_due(elapsed)
            while self._backend.notes:
                self._record.note("node", self._backend.notes.pop(0))
            self._callbacks.episodes(self._telemetry.fresh_episodes)
            if self._telemetry.steady_seconds >= (self._options.timeline or 0.0):
                self._attempt("timeline", self._save_timeline)
            if elapsed >= self._next_metrics:
                self._next_metrics = elapsed + _METRICS_SECONDS
                self._every_second(elapsed)
                if self._callbacks.progress(self._telemetry.env_steps, self._telemetry.metrics()):
                    return "callback"
            elif self._is_deterministic:  # the clock must not decide
                self._best.watch(self._telemetry, self._weights)
            if reason := self._reason_to_stop(elapsed):
                return reason
            self._checkpoints.save_if_due(elapsed, self._weights)

    def _every_second(self, elapsed: float) -> None:
        telemetry = self._telemetry
        for sidecar in self._sidecars:
            sidecar.poll()
        self._clients.update(telemetry.snapshots)
        is_here = self._backend_spec.stays_on_this_machine
        nodes = self._backend.process_ids().values() if is_here else ()
        telemetry.outside = self._machine.read([os.getpid(), *nodes])
        self._record.tick(telemetry, self._backend.restarted)
        self._begin_last_evaluation(elapsed)
        self._best.watch(telemetry, self._weights)
        self._best.write(elapsed)

    def _tick_seconds(self) -> float:
        """Time until the next turn of the loop, short near the end of a budget of env steps."""
        total = self._options.total_env_steps
        if total is None:
            return _LONGEST_TICK_SECONDS
        rate = max(self._telemetry.rate("env_steps"), _FAST_ENV_STEPS_PER_SECOND)
        left = (total - self._telemetry.env_steps) / rate
        return min(_LONGEST_TICK_SECONDS, max(_SHORTEST_TICK_SECONDS, left / 2))

    def _budget_is_spent(self) -> bool:
        total = self._options.total_env_steps
        return total is not None and self._telemetry.env_steps >= total

    def _observe(self) -> None:
        names = (node.name for node in self._plan.topology.nodes)
        snapshots = dict(zip(names, self._backend.snapshots(), strict=True))
        self._telemetry.update(snapshots, self._elapsed(), self._backend.queue_fills())

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _reason_to_stop(self, elapsed: float) -> StoppedBy | None:
        limit, result = self._options.max_seconds, self._result
        left = None if limit is None else max(0.0, limit - elapsed)
        if self._target is not None:
            reached = self._target.is_reached(self._telemetry, elapsed, left)
            if reached:
                result.reached_target = True
                result.seconds_to_target = self._elapsed()
                result.mean_return_100 = self._telemetry.mean_return_100
                beginning = self._telemetry if self._evaluation is None else self._evaluation
                result.env_steps_to_target = beginning.env_steps
                return "target"
        is_checking = self._target is not None and self._target.is_checking
        if self._budget_is_spent() and not (is_checking and left != 0.0):
            return "env_steps"
        return "seconds" if left == 0.0 else None

    def _weights(self) -> Parameters:
        return newest_weights(self._backend, self._plan.topology)

    def _evaluate_if_due(self, elapsed: float) -> None:
        """Begin the next evaluation of the curve, or take the one that has ended."""
        if self._in_curve is not None and self._taken(self._in_curve) is not None:
            self._in_curve = None
        if self._period is None or not (self._evaluation is None or self._evaluation.done()):
            return
        every, by_clock = self._period
        now = elapsed if by_clock else self._telemetry.env_steps
        if now >= self._next_of_curve and self._in_curve is None:
            self._next_of_curve = (now // every + 1) * every
            found = self._begin_evaluation(self._weights(), self._telemetry.env_steps, None)
            self._in_curve = found
            if self._is_deterministic:
                self._wait_for(found)

    def _play(self, attempt: int, seconds: float | None) -> Callable[[], np.ndarray | None]:
        if self._in_curve is not None:
            playing, self._in_curve = self._in_curve, None
            return lambda: self._taken(playing)
        if self._evaluation is not None and not self._evaluation.done():
            return lambda: np.empty(0)  # an environment hangs
        found = self._begin_evaluation(self._weights(), self._telemetry.env_steps, seconds, attempt)
        if self._is_deterministic:
            self._wait_for(found)
        return lambda: self._taken(found)

    def _begin_evaluation(
        self, weights: Parameters, env_steps: int, max_seconds: float | None, attempt: int = 0
    ) -> Evaluation:
        # Other episodes than the actors see, and other ones for each attempt.
        seed = self._options.seed * 1_000_003 + weights.version * 7919 + attempt * 104_729 + 12_345
        evaluator = partial(
            Evaluator,
            self._plan.problem.environment,
            self._plan.topology.network,
            seed=seed % 2**31,
            num_episodes=self._options.evaluation_episodes,
        )
        self._evaluation = Evaluation(evaluator, weights, env_steps, max_seconds)
        return self._evaluation

    def _wait_for(self, evaluation: Evaluation, seconds: float = math.inf) -> None:
        """Let an evaluation end, within `seconds`. Signals take effect at once."""
        deadline = time.monotonic() + seconds
        while evaluation.returns() is None:
            self._signals.check()
            evaluation.done(_LONGEST_TICK_SECONDS)
            if time.monotonic() > deadline:
                evaluation.end()

    def _taken(self, evaluation: Evaluation) -> np.ndarray | None:
        """The returns of an evaluation, recorded; None while it is played."""
        returns, result = evaluation.returns(), self._result
        if returns is None or not returns.size:
            return returns
        # Without the longest episodes the mean would be that of the short ones.
        is_whole = returns.size == self._options.evaluation_episodes
        if is_whole:
            self._best.evaluated(Score.of(returns), evaluation.weights, evaluation.env_steps)
        if is_whole or result.evaluation_return is None:
            result.evaluation_return = float(returns.mean())
            result.evaluation_episodes = returns.size
            result.evaluation_env_steps = evaluation.env_steps
            if is_whole:
                parts = self._plan.problem.environment.parts
                result.evaluation_by_task = scores_by_task(parts, returns)
        if is_whole:
            mean, age = float(returns.mean()), evaluation.env_steps
            found = {EVALUATION: mean, EVALUATION_ENV_STEPS: age}
            self._record.tick(self._telemetry, self._backend.restarted, evaluation=found)
            result.evaluations.append({"env_steps": age, "return": mean})
            if self._period is not None:
                self._progress.note(f"evaluation after {age:,} env steps: {number(mean)}")
        self._callbacks.evaluation(returns, evaluation.env_steps)
        return returns

    def _begin_last_evaluation(self, elapsed: float) -> None:
        """Begin it in the last seconds where it takes longer than a run may after its limit."""
        limit, episodes = self._options.max_seconds, self._options.evaluation_episodes
        if limit is None or self._target is not None or self._evaluation is not None:
            return
        if self._is_deterministic or self._plan.problem.environment.is_external:
            return
        # As an actor would play them; the longest episode takes about twice the mean.
        rate = self._telemetry.rate("env_steps") / self._plan.problem.num_actors
        takes = 2.0 * episodes * self._telemetry.mean_length_100 / max(rate, 1e-9)
        if takes > _AFTER_LIMIT_SECONDS and elapsed >= limit - min(takes, _LAST_SHARE * limit):
            self._begin_evaluation(self._weights(), self._telemetry.env_steps, None)

    def _within_limit(self, most: float, after_limit: float) -> float:
        """`most` seconds, or fewer: what is left until `after_limit` seconds after the limit."""
        limit = self._options.max_seconds
        if limit is None:
            return most
        return min(most, max(_LEAST_SECONDS, limit + after_limit - self._elapsed()))

    def _save_timeline(self) -> None:
        """Save the timeline once: when steady state has lasted long enough, or at the end."""
        wanted, problem = self._options.timeline, self._plan.problem
        if not self._needs_timeline or wanted is None:
            return
        self._needs_timeline = False
        end, spans = time.time(), self._backend.take_spans()
        about = {
            "architecture": self._plan.architecture,
            "env": problem.environment.name,
            "backend": self._options.backend,
            "actors": problem.num_actors,
            "envs_per_actor": problem.envs_per_actor,
        }
        begin = end - min(wanted, self._telemetry.steady_seconds or wanted)
        trace = timeline(self._plan.topology, spans, begin, end, about)
        write_atomically(self._directory.path / TIMELINE_FILE, dumps(trace) + "\n")

    def _conclude(self, progress: Progress) -> None:
        """Last numbers, last checkpoint and result.json, also after an interrupt or a failure. A
        step that fails is reported, and the others are still done."""
        self._attempt("last numbers", self._observe)
        if self._result.stopped_by == "seconds" and not self._telemetry.env_steps:
            self._report("end", "no env step was made: the start took all of --max-seconds")
        self._attempt("timeline", self._save_timeline)
        self._attempt("last checkpoint", self._save_last)
        self._attempt("outcome", self._add_outcome)
        if self._result.stopped_by in ("env_steps", "seconds", "callback"):
            self._attempt("evaluation", self._evaluate_last)
        self._attempt("best weights", self._judge_best)
        self._attempt("summary", self._summarise)
        path, restarted = self._directory.path, self._backend.restarted
        self._attempt("result.json", lambda: self._result.save(path / RESULT_FILE))
        self._attempt("status", lambda: self._record.tick(self._telemetry, restarted, ended=True))
        progress.finish(self._result)

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._report("end", f"{what}: {type(error).__name__}: {text_of(error)}")

    def _report(self, sort: EventSort, text: str) -> None:
        """Note an error, which is printed also with --quiet."""
        self._record.note(sort, text)
        if self._options.quiet:
            log_to_stderr(text)

    def _save_last(self) -> None:
        result, weights = self._result, self._weights()
        result.parameters_sha256 = hashlib.sha256(weights.vector.tobytes()).hexdigest()
        result.best_policy = best_policy(self._backend, self._plan.topology)
        patience = self._within_limit(_LAST_CAPTURE_SECONDS, 1.5)
        self._checkpoints.save_last(weights, self._nodes_are_alive, patience)
        self._best.watch(self._telemetry, lambda: weights)

    def _evaluate_last(self) -> None:
        """Evaluate the last weights, or let the evaluation that has begun end. A run ends at most
        5 s after its limit."""
        episodes = self._options.evaluation_episodes
        if not episodes or self._plan.problem.environment.is_external:
            return  # only clients can play an external environment
        weights, env_steps = self._weights(), self._telemetry.env_steps
        self._stop_nodes()  # frees the cores for the evaluation
        is_exact = self._is_deterministic and self._result.stopped_by != "seconds"

        def wait_for(evaluation: Evaluation) -> None:
            most = math.inf if is_exact else self._within_limit(_CLOSING_EVALUATION_SECONDS, 3.0)
            self._wait_for(evaluation, most)

        try:
            if self._in_curve is not None:
                wait_for(self._in_curve)
                self._taken(self._in_curve)
            if self._period is not None and self._result.evaluation_env_steps == env_steps:
                return
            last, has_others = self._evaluation, bool(self._target or self._period)
            if last is None or (last.done() and has_others):
                last = self._begin_evaluation(weights, env_steps, None)
            wait_for(last)
            returns = self._taken(last)
            if returns is not None and returns.size < episodes:
                ended = f"{returns.size} of {episodes} episodes"
                self._record.note("end", f"closing evaluation: {ended} ended in time")
        except KeyboardInterrupt:  # no reason to lose the result as well
            self._record.note("end", "interrupted during the closing evaluation")

    def _stop_nodes(self) -> None:
        self._backend.stop(self._within_limit(_GRACE_SECONDS, 2.5))

    def _add_outcome(self) -> None:
        """Add what the system itself measures, such as a league's games."""
        outcome = self._plan.topology.outcome
        if outcome is not None:
            outcome.add_to(self._result, self._backend.parameters, self._directory.path)

    def _judge_best(self) -> None:
        """Write the best weights, and note whether the run ended far below them."""
        outcome = self._plan.topology.outcome
        measured = None if outcome is None else outcome.best_weights(self._directory.path)
        if measured is not None:
            score, weights, env_steps = measured
            self._best.keep(Score(score, 0.0, True), weights, env_steps)
        self._best.write()
        if outcome is not None:
            return  # training returns do not show progress
        best, now, result = self._best.best, training_score(self._telemetry), self._result
        if best is None:
            return
        result.best_return, result.best_env_steps = best.score.mean, best.env_steps
        if result.reached_target or now is None or not self._best.has_dropped(now):
            return
        last = result.evaluation_return
        is_as_good = best.score.evaluated and last is not None and last >= best.score.mean
        result.collapsed = not is_as_good

    def _summarise(self) -> None:
        """Fill in the numbers of the whole run."""
        result, telemetry, plan = self._result, self._telemetry, self._plan
        result.wall_seconds = self._elapsed()
        result.restarts = self._backend.restarts
        result.env_steps, result.updates = telemetry.env_steps, telemetry.updates
        result.trained = result.updates > 0
        result.frames = result.env_steps * plan.problem.spec.frames_per_step
        result.env_steps_per_second = telemetry.steady_rate() or None  # 0: too short to say
        if not result.reached_target:
            result.mean_return_100 = telemetry.mean_return_100 if telemetry.episodes else None
        result.episodes, result.dropped = telemetry.episodes, telemetry.dropped
        result.aborted_episodes = telemetry.aborted_episodes
        result.policy_lag = lag_entry(telemetry.lag, telemetry.env_steps, telemetry.updates)
        in_one_thread = self._backend_spec.runs_in_one_thread
        result.bottleneck = bottleneck(
            telemetry, plan.topology, plan.options, plan.config, in_one_thread
        )
        result.stage_shares = telemetry.stage_shares()


def show_result(plan: Plan, result: RunResult) -> RunResult:
    """Print the result of a run that had ended before."""
    display(plan).finish(result)
    return result


def _telemetry_of(plan: Plan, in_one_thread: bool) -> RunTelemetry:
    interleaved = [
        node.name
        for group in plan.topology.groups()
        if in_one_thread or (len(group.nodes) > 1 and not group.threads)
        for node in group.nodes
    ]
    return RunTelemetry([(node.name, node.kind) for node in plan.topology.nodes], interleaved)
