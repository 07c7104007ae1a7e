# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep`: checks, trials, table. The same command continues an interrupted sweep."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from veldt.architectures import label
from veldt.errors import ConfigurationError
from veldt.files import held_folder, keep_conditions, write_atomically
from veldt.options.fields import flat
from veldt.run.plan import Plan, make_plan
from veldt.run.process import Signals
from veldt.sweeps.search import Dimension, SweepOptions, search_space, with_keys
from veldt.sweeps.study import (
    NOTE,
    Rungs,
    SweepResult,
    import_optuna,
    num_counted,
    open_study,
    result_in,
    run_dir_of,
    score_of,
    short,
    sweep_result,
)
from veldt.telemetry.record import STATUS_FILE
from veldt.telemetry.result import dumps

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

SETTINGS_FILE, SWEEP_RESULT_FILE = "sweep.json", "result.json"
_FINISHED = ("target", "env_steps", "seconds")
_GRACE_SECONDS = 20.0  # a run writes a checkpoint before it ends
_POLL_SECONDS = 0.1
_OF_THE_SWEEP = ("run_dir", "quiet", "json", "dashboard")
LogFn = Callable[[str], None]


def sweep(
    architecture: str,
    options: Mapping[str, Any],
    search: Sequence[str],
    settings: SweepOptions,
    log: LogFn = lambda text: None,
    trust_code: bool = False,
) -> SweepResult:
    """Run trials until there are as many as asked for; `options` are those of every run."""
    import_optuna()
    fixed = {n: v for n, v in options.items() if n not in _OF_THE_SWEEP}
    if fixed.get("max_seconds") is None and fixed.get("total_env_steps") is None:
        raise ConfigurationError("give every trial a budget: --max-seconds or --total-env-steps")
    dimensions = search_space(search, architecture)
    plan = _checked_plan(architecture, fixed, trust_code)
    folder = Path(settings.out or _default_folder(architecture, plan))
    every = {"architecture": architecture, **fixed, "env": plan.problem.environment.name}
    with held_folder(folder, "sweep", "--out"):
        search_texts = {f"search {each.name}": each.text for each in dimensions}
        keep_conditions(folder / SETTINGS_FILE, "a sweep", {**search_texts, **every})
        (folder / "trials").mkdir(exist_ok=True)
        study = open_study(folder, settings)
        defaults = _default_proposal(plan, dimensions)
        if not study.trials and len(defaults) == len(dimensions):
            study.enqueue_trial(defaults)
        _recover(study, folder, log)
        log(f"{folder}: {settings.trials} trials, {settings.parallel} at a time, seed and budget"
            f" the same for all; pruner {settings.pruner}")  # fmt: skip
        with Signals() as signals:
            trials = _Trials(study, folder, dimensions, every, log, trust_code, signals)
            left = settings.trials - num_counted(study)
            if left > 0:
                study.optimize(trials, left, n_jobs=settings.parallel, catch=RunFailure)
            signals.check()  # Optuna drops what its threads raise
        result = sweep_result(study, dimensions, folder, every, settings.pruner)
        write_atomically(folder / SWEEP_RESULT_FILE, dumps(asdict(result)) + "\n", durable=True)
    return result


class RunFailure(Exception):  # noqa: N818 - it does not end the sweep
    """The run of a trial failed."""


@dataclass
class _Trials:
    """Optuna's objective: runs a trial in a process of its own and returns its score."""

    study: Study
    folder: Path
    dimensions: Sequence[Dimension]
    options: Mapping[str, Any]
    """Of every run."""
    log: LogFn
    trust_code: bool
    signals: Signals

    def __call__(self, trial: Trial) -> float:
        values = {each.name: each.suggest(trial) for each in self.dimensions}
        shown = ", ".join(f"{name} {short(value)}" for name, value in values.items())
        self.log(f"trial {trial.number}: {shown}")
        options = with_keys({**self.options, **values})
        run = TrialRun(run_dir_of(self.folder, trial.number), options, self.trust_code)
        try:
            self._watch(trial, run)
        except BaseException:
            end_run(run.process)
            raise
        score, why = _final_score(run.run_dir)
        if score is None:
            why = why or run.last_line()
            trial.set_user_attr(NOTE, why)
            self.log(f"trial {trial.number}: failed: {why}")
            raise RunFailure(why)
        self.log(f"trial {trial.number}: score {short(score)}")
        return score

    def _watch(self, trial: Trial, run: TrialRun) -> None:
        """Wait for the end of the run; raises where it should end early."""
        rungs = Rungs(trial)
        while run.process.poll() is None:
            try:
                self.signals.check()
            except KeyboardInterrupt:
                self.study.enqueue_trial(trial.params)
                raise
            progress = run.progress()
            if progress is not None and rungs.should_prune(*progress):
                spent, score = progress
                why = f"pruned at {spent:.0%} of the budget with return {short(score)}"
                trial.set_user_attr(NOTE, why)
                self.log(f"trial {trial.number}: {why}")
                raise import_optuna().TrialPruned
            time.sleep(_POLL_SECONDS)


def _checked_plan(architecture: str, fixed: Mapping[str, Any], trust_code: bool) -> Plan:
    """The plan of a run without a search, so that errors appear before anything starts."""
    from veldt.api import first_weights, split_options

    common, own = split_options({**fixed, "quiet": True})
    plan = make_plan(architecture, common, own, first=first_weights(common, trust_code))
    if callable(fixed["env"]) or callable(fixed.get("network")):
        raise ConfigurationError(
            "trials are processes of their own: name environment and network as module:function"
        )
    return plan


def _default_proposal(plan: Plan, dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """The defaults of the searched options, as far as they are within the search."""
    now = {**flat(plan.options), **flat(plan.config)}
    for keyed in (plan.options.network_options, plan.options.wrappers):
        now |= vars(keyed)
    proposals = {each.name: each.proposal(now[each.name]) for each in dimensions}
    return {name: value for name, value in proposals.items() if value is not None}


def _default_folder(architecture: str, plan: Plan) -> str:
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", plan.problem.environment.name).strip("-")
    return f"sweeps/{label(architecture)}-{tidy}"


def _recover(study: Study, folder: Path, log: LogFn) -> None:
    """Conclude the trials that were running when the sweep was killed."""
    states = import_optuna().trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        run_dir = run_dir_of(folder, trial.number)
        score, _ = _final_score(run_dir)
        if score is not None:
            study.tell(trial.number, score)
            log(f"trial {trial.number}: finished after the sweep was killed, score {short(score)}")
            continue
        end_leftover(run_dir)
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial(trial.params)
        log(f"trial {trial.number}: was running when the sweep was killed; it is repeated")


def _final_score(run_dir: Path) -> tuple[float | None, str]:
    """The score of a run that used its budget or reached the target; else why there is none."""
    result = result_in(run_dir)
    if result is None or result.stopped_by not in _FINISHED:
        return None, ""
    return score_of(result), "no episode ended"


class TrialRun:
    """The process of one trial, in a session of its own: Ctrl-C reaches it through the sweep."""

    def __init__(self, run_dir: Path, options: Mapping[str, Any], trust_code: bool) -> None:
        self.run_dir, self._options = run_dir, options
        config = run_dir.with_suffix(".json")
        write_atomically(config, dumps(dict(options)) + "\n")
        arguments = ["train", "--config", str(config), "--run-dir", str(run_dir), "--quiet"]
        arguments += ["--trust-code"] if trust_code else []
        self._began = time.monotonic()
        with open(run_dir.with_suffix(".log"), "wb") as output:
            self.process = psutil.Popen(
                [sys.executable, "-m", "veldt", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        identity = {"pid": self.process.pid, "created": self.process.create_time()}
        write_atomically(run_dir.with_suffix(".pid"), dumps(identity))

    def progress(self) -> tuple[float, float] | None:
        """The used fraction of the budget, and the mean return of the last 100 training episodes.

        None before the first episode has ended."""
        try:
            status = json.loads((self.run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        score, budget = status.get("mean_return_100"), self._options.get
        if score is None or not status.get("episodes"):
            return None
        by_time = (time.monotonic() - self._began) / (budget("max_seconds") or float("inf"))
        by_steps = status.get("env_steps", 0) / (budget("total_env_steps") or float("inf"))
        return max(by_time, by_steps), float(score)

    def last_line(self) -> str:
        """The last line of the run's output, which says why it failed."""
        text = self.run_dir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"


def end_leftover(run_dir: Path) -> None:
    """End the run of a sweep that was killed, if it still exists."""
    with suppress(OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
        stored = json.loads(run_dir.with_suffix(".pid").read_text(encoding="utf-8"))
        process = psutil.Process(stored["pid"])
        if process.create_time() == stored["created"]:
            end_run(process)


def end_run(process: psutil.Process) -> None:
    """Terminate a run; kill its whole session where it does not end in time."""
    with suppress(psutil.NoSuchProcess):
        process.terminate()
        with suppress(psutil.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also nodes that outlived it
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
