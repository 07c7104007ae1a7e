# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep` from the first check to the table. The folder holds all that is known: the same
command goes on where a sweep was interrupted or killed."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from veldt.architectures import label
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.options.fields import flat
from veldt.run.fine_tuning import first_weights
from veldt.run.plan import Plan, make_plan
from veldt.run.signals import Terminated
from veldt.sweeps.options import PRUNERS, SweepOptions
from veldt.sweeps.report import SweepResult, sweep_result
from veldt.sweeps.runs import TrialFiles, TrialRun, score_of
from veldt.sweeps.search import Dimension, search_space
from veldt.sweeps.study import Study, check_installed
from veldt.telemetry.result import dumps

SETTINGS_FILE, RESULT_FILE = "sweep.json", "result.json"
_LOOK_SECONDS = 0.1
_OF_THE_SWEEP = ("run_dir", "local_dir", "resume", "quiet", "json", "dashboard", "port")
Say = Callable[[str], None]


def sweep(
    architecture: str,
    options: Mapping[str, Any],
    search: Sequence[str],
    settings: SweepOptions,
    say: Say = lambda text: None,
    trust_code: bool = False,
) -> SweepResult:
    """Run trials until there are as many as asked for. `options`: those of every run."""
    check_installed()
    fixed = {n: v for n, v in options.items() if n not in _OF_THE_SWEEP}
    if fixed.get("max_seconds") is None and fixed.get("total_env_steps") is None:
        raise ConfigurationError("give every trial a budget: --max-seconds or --total-env-steps")
    dimensions = search_space(search, architecture)
    plan = _checked_plan(architecture, fixed, trust_code)
    folder = Path(settings.out or _default_folder(architecture, plan))
    every = {"architecture": architecture, **fixed, "env": plan.problem.environment.name}
    with _held(folder, every, dimensions, settings):
        study = Study(folder, dimensions, settings, _start(plan, dimensions))
        _recover(study, folder, say)
        say(f"{folder}: {settings.trials} trials, {settings.parallel} at a time, seed and budget"
            f" the same for all; pruning: {PRUNERS[settings.pruner]}")  # fmt: skip
        runs = _Runs(study, folder, every, settings, say, trust_code)
        with _terminable():
            runs.run()
        files = [_files(folder, number) for number in range(len(study.trials))]
        result = sweep_result(study, dimensions, files, every, str(folder), settings.pruner)
        write_atomically(folder / RESULT_FILE, dumps(plain(result)) + "\n", durable=True)
    return result


def plain(result: SweepResult) -> dict[str, Any]:
    """For JSON."""
    trials = [vars(trial) for trial in result.trials]
    return {**vars(result), "trials": trials, "best": result.best and vars(result.best)}


class _Runs:
    """Starts, watches, prunes and ends the runs of a sweep."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        options: Mapping[str, Any],
        settings: SweepOptions,
        say: Say,
        trust_code: bool,
    ) -> None:
        self._study, self._folder, self._options = study, folder, options
        self._settings, self._say, self._trust_code = settings, say, trust_code
        self._running: dict[int, TrialRun] = {}

    def run(self) -> None:
        try:
            while self._start_missing() or self._running:
                for number, run in list(self._running.items()):
                    self._look(number, run)
                time.sleep(_LOOK_SECONDS)
        finally:
            for run in self._running.values():
                run.ask_to_end()
            for number, run in self._running.items():
                run.end()
                self._study.lose(number)

    def _start_missing(self) -> bool:
        """Whether one was started."""
        free = self._settings.parallel - len(self._running)
        left = self._settings.trials - self._study.counted() - len(self._running)
        for _ in range(min(free, left)):
            number, values = self._study.ask()
            run = TrialRun(
                _files(self._folder, number), {**self._options, **values}, self._trust_code
            )
            self._running[number] = run
            shown = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
            self._say(f"trial {number}: {shown}")
        return min(free, left) > 0

    def _look(self, number: int, run: TrialRun) -> None:
        if run.has_ended:
            del self._running[number]
            self._conclude(number, run)
            return
        progress = run.progress()
        if progress is not None and self._study.should_prune(number, *progress):
            spent, score = progress
            why = f"pruned at {spent:.0%} of the budget with return {_short(score)}"
            self._say(f"trial {number}: {why} ({self._settings.pruner})")
            run.end()
            del self._running[number]
            self._study.pruned(number, why)

    def _conclude(self, number: int, run: TrialRun) -> None:
        result = run.files.finished()
        score = None if result is None else score_of(result)
        if result is None or score is None:
            why = run.last_words() if result is None else "no episode ended"
            self._study.failed(number, why)
            self._say(f"trial {number}: failed: {why}")
            return
        self._study.complete(number, score)
        self._say(f"trial {number}: score {_short(score)} after {result.env_steps:,} env steps")


def _checked_plan(architecture: str, fixed: Mapping[str, Any], trust_code: bool) -> Plan:
    """The run as it would be without a search: whatever is wrong with it is said now."""
    from veldt.api import split_options

    common, own = split_options({**fixed, "quiet": True})
    plan = make_plan(architecture, common, own, first=first_weights(common, trust_code))
    if callable(fixed["env"]) or callable(fixed.get("network")):
        raise ConfigurationError(
            "trials are processes of their own: name environment and network as module:function"
        )
    return plan


def _start(plan: Plan, dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """What the search would propose to leave all as it is, where that is within the search."""
    now = {**flat(plan.options), **flat(plan.config)}
    proposals = {each.name: each.proposal(now[each.name]) for each in dimensions}
    return {name: value for name, value in proposals.items() if value is not None}


def _default_folder(architecture: str, plan: Plan) -> str:
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", plan.problem.environment.name).strip("-")
    return f"sweeps/{label(architecture)}-{tidy}"


def _files(folder: Path, number: int) -> TrialFiles:
    return TrialFiles(folder / "trials" / f"{number:03}")


@contextmanager
def _held(
    folder: Path,
    options: Mapping[str, Any],
    dimensions: Sequence[Dimension],
    settings: SweepOptions,
) -> Iterator[None]:
    """The folder, made or found with the same conditions, and nobody else's meanwhile."""
    search = {each.name: each.text for each in dimensions}
    wanted = {"options": dict(options), "search": search, "pruner": settings.pruner}
    wanted = json.loads(dumps(wanted))
    with held_folder(folder, "sweep", "--out"):
        (folder / "trials").mkdir(exist_ok=True)
        _refuse_a_mixture(folder, wanted)
        write_atomically(folder / SETTINGS_FILE, dumps(wanted) + "\n", durable=True)
        yield


def _refuse_a_mixture(folder: Path, wanted: Mapping[str, Any]) -> None:
    path = folder / SETTINGS_FILE
    if not path.exists():
        return
    held = json.loads(path.read_text(encoding="utf-8"))
    for part in ("search", "options"):
        for name in dict.fromkeys([*wanted[part], *held.get(part, {})]):
            before, now = held.get(part, {}).get(name), wanted[part].get(name)
            if before != now:
                raise ConfigurationError(
                    f"{folder} holds a sweep with {name} {before}, not {now}; choose another --out"
                )


def _recover(study: Study, folder: Path, say: Say) -> None:
    """Deal with trials of a sweep that was killed: what has finished counts, the rest is lost."""
    for number in study.left_running():
        files = _files(folder, number)
        result = files.finished()
        score = None if result is None else score_of(result)
        if score is not None:
            study.complete(number, score)
            say(f"trial {number}: finished after the sweep was killed, score {_short(score)}")
            continue
        files.end_leftover()
        study.lose(number)
        say(f"trial {number}: was running when the sweep was killed; it is tried again")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: its runs are ended first."""

    def raised(*_: object) -> None:
        raise Terminated

    before = None
    with suppress(ValueError):  # signals belong to the main thread
        before = signal.signal(signal.SIGTERM, raised)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
