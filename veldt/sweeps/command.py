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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from veldt.architectures import label
from veldt.errors import ConfigurationError, extra_module
from veldt.files import held_folder, keep_conditions, write_atomically
from veldt.options.fields import flat_keys, format_value
from veldt.run.plan import Plan, make_plan
from veldt.run.process import Signals
from veldt.sweeps.search import Dimension, SweepOptions, search_space, with_keys
from veldt.telemetry.log_files import JsonLog
from veldt.telemetry.record import RESULT_FILE, STATUS_FILE
from veldt.telemetry.result import RunResult, dumps

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SETTINGS_FILE, SWEEP_RESULT_FILE, JOURNAL = "sweep.json", "result.json", "journal.jsonl"
NOTE, PROCESS = "note", "process"
"""User attributes of a trial: why it failed or was pruned; id and start time of its process."""
_RUNGS = 10
"""Points of a trial's budget at which its returns are compared with those of others."""
_FIRST_RUNG = 2  # earlier returns say too little
_FINISHED = ("target", "env_steps", "seconds")
_GRACE_SECONDS = 20.0  # a run writes a checkpoint before it ends
_POLL_SECONDS = 0.1
_OF_THE_SWEEP = ("run_dir", "quiet", "json", "dashboard")
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
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
    space = search_space(search, architecture)
    plan = _checked_plan(architecture, fixed, trust_code)
    env = plan.problem.environment.name
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-")
    folder = Path(settings.out or f"sweeps/{label(architecture)}-{tidy}")
    every = {"architecture": architecture, **fixed, "env": env}
    with held_folder(folder, "sweep", "--out"):
        searched = {f"search {name}": each.text for name, each in space.items()}
        keep_conditions(folder / SETTINGS_FILE, "a sweep", {**searched, **every})
        (folder / "trials").mkdir(exist_ok=True)
        study = open_study(folder, settings)
        defaults = _default_parameters(plan, space)
        if not study.trials and None not in defaults.values():
            study.enqueue_trial(defaults)
        recover(study, folder, log)
        log(f"{folder}: {settings.trials} trials, {settings.parallel} at a time, seed and budget"
            f" the same for all; pruner {settings.pruner}")  # fmt: skip
        left = settings.trials - len(ended_trials(study))
        with Signals() as signals, ThreadPoolExecutor(settings.parallel) as pool:
            trials = Trials(study, folder, space, every, log, trust_code, signals)
            for _ in pool.map(trials.run_next, range(left)):
                pass
        result = sweep_result(study, space, folder, every, settings.pruner)
        write_atomically(folder / SWEEP_RESULT_FILE, dumps(asdict(result)) + "\n", durable=True)
    return result


def import_optuna() -> Any:
    return extra_module("optuna", "veldt sweep searches with optuna", extra="sweep")


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


def _default_parameters(plan: Plan, space: Mapping[str, Dimension]) -> dict[str, Any]:
    """The defaults of the searched options; None for each that is outside of the search."""
    now = {**flat_keys(plan.options), **flat_keys(plan.config)}
    return {name: each.parameter(now[name]) for name, each in space.items()}


def open_study(folder: Path, options: SweepOptions) -> Study:
    """Load the study of this folder, or make it. The caller holds the folder's lock."""
    optuna = import_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruners = {
        "median": optuna.pruners.MedianPruner(options.startup_trials, _FIRST_RUNG),
        "halving": optuna.pruners.SuccessiveHalvingPruner(_FIRST_RUNG, reduction_factor=2),
        "none": optuna.pruners.NopPruner(),
    }
    path = folder / JOURNAL
    # A killed sweep may leave Optuna's own lock, and an incomplete line.
    path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
    JsonLog(path).close()
    study: Study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))),
        study_name="sweep",
        direction="maximize",
        load_if_exists=True,
        pruner=pruners[options.pruner],
    )
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=max(2, options.trials // 3),
        constant_liar=options.parallel > 1,
        seed=options.sampler_seed + len(study.trials),  # a resumed sweep draws other numbers
    )
    return study


def recover(study: Study, folder: Path, log: LogFn) -> None:
    """Conclude the trials that were running when the sweep was interrupted or killed."""
    states = import_optuna().trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        with suppress(KeyError, psutil.NoSuchProcess):
            pid, created = trial.user_attrs[PROCESS]
            process = psutil.Process(pid)
            if process.create_time() == created:
                end_run(process)
        score, _ = _final_score(run_dir_of(folder, trial.number))
        if score is not None:
            study.tell(trial.number, score)
            log(f"trial {trial.number}: finished after the sweep was killed, score {short(score)}")
            continue
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial(trial.params)
        log(f"trial {trial.number}: was running when the sweep was killed; it is repeated")


@dataclass(frozen=True)
class Trials:
    """Runs trials of one study, each in a process of its own."""

    study: Study
    folder: Path
    space: Mapping[str, Dimension]
    options: Mapping[str, Any]
    """Of every run."""
    log: LogFn
    trust_code: bool
    signals: Signals

    def run_next(self, _: int) -> None:
        """Run one trial. An interrupted one stays unfinished, and the next sweep repeats it."""
        self.signals.check()
        states = import_optuna().trial.TrialState
        trial = self.study.ask({name: each.distribution for name, each in self.space.items()})
        values = {name: each.value(trial.params[name]) for name, each in self.space.items()}
        shown = ", ".join(f"{name} {short(value)}" for name, value in values.items())
        self.log(f"trial {trial.number}: {shown}")
        run_dir = run_dir_of(self.folder, trial.number)
        process = start_run(
            run_dir,
            with_keys({**self.options, **values}, self.options["architecture"]),
            self.trust_code,
        )
        trial.set_user_attr(PROCESS, [process.pid, process.create_time()])
        try:
            note = self.wait(trial, process, run_dir)
        finally:
            if process.poll() is None:
                end_run(process)
        score, problem = _final_score(run_dir)
        if note:
            state, score = states.PRUNED, None
        elif score is not None:
            state, note = states.COMPLETE, f"score {short(score)}"
        else:
            state = states.FAIL
            note = f"failed: {problem or _last_line(run_dir, process.returncode)}"
        self.log(f"trial {trial.number}: {note}")
        if score is None:
            trial.set_user_attr(NOTE, note)
        self.study.tell(trial, score, state)

    def wait(self, trial: Trial, process: psutil.Popen, run_dir: Path) -> str:
        """Wait for the end of the run; returns why it should end early, if it should."""
        began, rung = time.monotonic(), 0
        while process.poll() is None:
            self.signals.check()
            fraction, score = progress(run_dir, self.options, time.monotonic() - began)
            while rung < min(_RUNGS - 1, int(fraction * _RUNGS)):
                rung += 1
                trial.report(score, rung)
                if trial.should_prune():
                    return f"pruned at {fraction:.0%} of the budget with return {short(score)}"
            time.sleep(_POLL_SECONDS)
        return ""


def start_run(run_dir: Path, options: Mapping[str, Any], trust_code: bool) -> psutil.Popen:
    """Start the run of a trial in a session of its own: Ctrl-C reaches it through the sweep."""
    config = run_dir.with_suffix(".json")
    write_atomically(config, dumps(dict(options)) + "\n")
    arguments = ["train", "--config", str(config), "--run-dir", str(run_dir), "--quiet"]
    arguments += ["--trust-code"] if trust_code else []
    with open(run_dir.with_suffix(".log"), "wb") as output:
        return psutil.Popen(
            [sys.executable, "-m", "veldt", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def progress(run_dir: Path, options: Mapping[str, Any], seconds: float) -> tuple[float, float]:
    """The used fraction of the budget, and the mean return of the last 100 training episodes.

    The fraction is 0 before the first episode has ended."""
    try:
        status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        score, env_steps = float(status["mean_return_100"]), status["env_steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, 0.0
    by_time = seconds / (options.get("max_seconds") or float("inf"))
    by_steps = env_steps / (options.get("total_env_steps") or float("inf"))
    return max(by_time, by_steps), score


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


def run_dir_of(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:03}"


def _result_in(run_dir: Path) -> RunResult | None:
    """The result of a run; None before its end."""
    try:
        return RunResult.load(run_dir / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None


def _final_score(run_dir: Path) -> tuple[float | None, str]:
    """The score of a run that used its budget or reached the target; else why there is none."""
    result = _result_in(run_dir)
    if result is None or result.stopped_by not in _FINISHED:
        return None, ""
    if result.evaluation_return is not None:
        return result.evaluation_return, ""
    return result.mean_return_100, "no episode ended"


def _last_line(run_dir: Path, exit_code: int | None) -> str:
    """The last line of a run's output, which says why it failed."""
    text = run_dir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    lines = text.strip().splitlines()
    return lines[-1] if lines else f"exit code {exit_code}"


@dataclass(frozen=True)
class SweepTrial:
    """One trial; unknown values are None."""

    number: int
    state: str
    """complete, pruned or failed."""
    values: dict[str, Any]
    """Values of the searched options."""
    score: float | None
    """For a pruned trial, its mean training return at its end."""
    env_steps: int | None
    seconds: float | None
    note: str = ""


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep so far."""

    architecture: str
    env: str
    out: str
    pruner: str
    search: dict[str, str]
    trials: list[SweepTrial]
    """Without those that were interrupted and repeated."""
    best: SweepTrial | None = None
    best_run: str | None = None
    command: str | None = None
    """Repeats the best run."""

    def text(self) -> str:
        """A table, then the best trial."""
        rows = [["trial", "state", *self.search, "score", "env steps", "seconds", ""]]
        for trial in sorted(self.trials, key=_order):
            values = [*trial.values.values(), trial.score, trial.env_steps, trial.seconds]
            rows.append([str(trial.number), trial.state, *map(short, values), trial.note])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        states = [trial.state for trial in self.trials]
        lines.append(", ".join(f"{states.count(state)} {state}" for state in _STATES.values()))
        if self.best is None:
            return "\n".join([*lines, "no trial has a score; see the logs of the runs"])
        lines.append(f"best: trial {self.best.number}, score {short(self.best.score)}")
        lines.append(f"repeat it: {self.command or self.best_run}")
        return "\n".join(lines)


def ended_trials(study: Study) -> list[FrozenTrial]:
    """Trials that ended by themselves or were pruned; not those that were interrupted."""
    return [
        trial
        for trial in study.trials
        if trial.state.name == "COMPLETE"
        or (trial.state.is_finished() and NOTE in trial.user_attrs)
    ]


def sweep_result(
    study: Study,
    space: Mapping[str, Dimension],
    folder: Path,
    options: Mapping[str, Any],
    pruner: str,
) -> SweepResult:
    """The result from what the study and the run directories have stored."""
    trials = []
    for ended in ended_trials(study):
        result = _result_in(run_dir_of(folder, ended.number))
        problems = [] if result is None else result.problems()
        trials.append(
            SweepTrial(
                ended.number,
                _STATES[ended.state.name],
                {name: each.value(ended.params[name]) for name, each in space.items()},
                ended.value,
                None if result is None else result.env_steps,
                None if result is None else result.wall_seconds,
                ended.user_attrs.get(NOTE) or ", ".join(p.partition(":")[0] for p in problems),
            )
        )
    complete = [trial for trial in trials if trial.state == "complete"]
    best = min(complete, key=_order, default=None)
    best_run = None if best is None else run_dir_of(folder, best.number)
    result = None if best_run is None else _result_in(best_run)
    return SweepResult(
        str(options["architecture"]),
        str(options["env"]),
        str(folder),
        pruner,
        {name: each.text for name, each in space.items()},
        trials,
        best,
        None if best_run is None else str(best_run),
        None if result is None else result.command,
    )


def _order(trial: SweepTrial) -> tuple[bool, float, float]:
    """Complete trials first, best at the top; with equal scores, fewer env steps first."""
    score = float("-inf") if trial.score is None else trial.score
    return trial.state != "complete", -score, trial.env_steps or 0


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else format_value(value)
