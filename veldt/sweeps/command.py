# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep`: checks, trials, table. The same command continues an interrupted sweep."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.architectures import label
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.options.fields import flat
from veldt.run.plan import Plan, make_plan
from veldt.run.process import Terminated
from veldt.sweeps.options import PRUNERS, SweepOptions
from veldt.sweeps.report import SweepResult, sweep_result
from veldt.sweeps.runs import TrialFiles, TrialRun, score_of
from veldt.sweeps.search import Dimension, search_space, with_keys
from veldt.sweeps.study import NOTE, Rungs, import_optuna, num_counted, open_study, retry
from veldt.telemetry.result import dumps

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

SETTINGS_FILE, RESULT_FILE = "sweep.json", "result.json"
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
        _store_conditions(folder, every, dimensions, settings)
        study = open_study(folder, settings)
        defaults = _default_proposal(plan, dimensions)
        if not study.trials and len(defaults) == len(dimensions):
            study.enqueue_trial(defaults)
        _recover(study, folder, log)
        log(f"{folder}: {settings.trials} trials, {settings.parallel} at a time, seed and budget"
            f" the same for all; pruning: {PRUNERS[settings.pruner]}")  # fmt: skip
        with _Trials(study, folder, dimensions, every, log, trust_code).interruptible() as trials:
            left = settings.trials - num_counted(study)
            if left > 0:
                study.optimize(trials, left, n_jobs=settings.parallel, catch=RunFailure)
        result = sweep_result(study, dimensions, folder, every, settings.pruner)
        write_atomically(folder / RESULT_FILE, dumps(plain(result)) + "\n", durable=True)
    return result


def plain(result: SweepResult) -> dict[str, Any]:
    """The result as JSON values."""
    trials = [vars(trial) for trial in result.trials]
    return {**vars(result), "trials": trials, "best": result.best and vars(result.best)}


class RunFailure(Exception):  # noqa: N818 - it does not end the sweep
    """The run of a trial failed."""


class _Trials:
    """Optuna's objective: runs a trial in a process of its own and returns its score."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        dimensions: Sequence[Dimension],
        options: Mapping[str, Any],
        log: LogFn,
        trust_code: bool,
    ) -> None:
        self._study, self._folder, self._dimensions = study, folder, dimensions
        self._options, self._log, self._trust_code = options, log, trust_code
        self._stop_requested: type[KeyboardInterrupt] | None = None

    @contextmanager
    def interruptible(self) -> Iterator[_Trials]:
        """Ctrl-C and SIGTERM end all runs before they end the sweep."""

        def request(number: int, frame: object) -> None:
            self._stop_requested = Terminated if number == signal.SIGTERM else KeyboardInterrupt

        before = {}
        with suppress(ValueError):  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, request)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._stop_requested is not None:  # Optuna does not pass on what its threads raise
            raise self._stop_requested

    def __call__(self, trial: Trial) -> float:
        values = {each.name: each.suggest(trial) for each in self._dimensions}
        shown = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
        self._log(f"trial {trial.number}: {shown}")
        files = TrialFiles.of(self._folder, trial.number)
        run = TrialRun(files, with_keys({**self._options, **values}), self._trust_code)
        try:
            self._watch(trial, run)
        except BaseException:
            run.end()
            raise
        result = files.finished()
        score = None if result is None else score_of(result)
        if result is None or score is None:
            why = run.last_line() if result is None else "no episode ended"
            trial.set_user_attr(NOTE, why)
            self._log(f"trial {trial.number}: failed: {why}")
            raise RunFailure(why)
        steps = f"{result.env_steps:,} env steps"
        self._log(f"trial {trial.number}: score {_short(score)} after {steps}")
        return score

    def _watch(self, trial: Trial, run: TrialRun) -> None:
        """Wait for the end of the run; raises where it shall end early."""
        rungs = Rungs(trial)
        while not run.has_ended:
            if self._stop_requested is not None:
                retry(self._study, trial)
                raise self._stop_requested
            progress = run.progress()
            if progress is not None and rungs.should_prune(*progress):
                spent, score = progress
                why = f"pruned at {spent:.0%} of the budget with return {_short(score)}"
                trial.set_user_attr(NOTE, why)
                self._log(f"trial {trial.number}: {why}")
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


def _store_conditions(
    folder: Path,
    options: Mapping[str, Any],
    dimensions: Sequence[Dimension],
    settings: SweepOptions,
) -> None:
    """Write SETTINGS_FILE, or check that the folder's sweep has the same conditions."""
    search = {each.name: each.text for each in dimensions}
    wanted = {"options": dict(options), "search": search, "pruner": settings.pruner}
    wanted = json.loads(dumps(wanted))
    path = folder / SETTINGS_FILE
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else wanted
    for part in ("search", "options"):
        for name in dict.fromkeys([*wanted[part], *known.get(part, {})]):
            before, now = known.get(part, {}).get(name), wanted[part].get(name)
            if before != now:
                raise ConfigurationError(
                    f"{folder} holds a sweep with {name} {before}, not {now}; choose another --out"
                )
    (folder / "trials").mkdir(exist_ok=True)
    write_atomically(path, dumps(wanted) + "\n", durable=True)


def _recover(study: Study, folder: Path, log: LogFn) -> None:
    """Conclude the trials that were running when the sweep was killed."""
    states = import_optuna().trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        files = TrialFiles.of(folder, trial.number)
        result = files.finished()
        score = None if result is None else score_of(result)
        if score is not None:
            study.tell(trial.number, score)
            log(f"trial {trial.number}: finished after the sweep was killed, score {_short(score)}")
            continue
        files.end_leftover()
        retry(study, trial)
        study.tell(trial.number, state=states.FAIL)
        log(f"trial {trial.number}: was running when the sweep was killed; it is repeated")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
