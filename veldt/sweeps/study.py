# SPDX-License-Identifier: Apache-2.0
"""The Optuna study of a sweep, stored in a journal in its folder, and the result of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.errors import extra_module
from veldt.options.fields import format_value
from veldt.sweeps.search import Dimension, SweepOptions
from veldt.telemetry.log_files import JsonLog
from veldt.telemetry.record import RESULT_FILE
from veldt.telemetry.result import RunResult

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "journal.jsonl"
RUNGS = 10
"""Points of a trial's budget at which its returns are compared with those of others."""
_FIRST_RUNG = 2  # earlier returns say too little
NOTE = "note"
"""User attribute of a trial that failed or was pruned: why."""
_STATES = ("complete", "pruned", "failed", "lost")


def import_optuna() -> Any:
    return extra_module("optuna", "veldt sweep searches with optuna", extra="sweep")


def open_study(folder: Path, options: SweepOptions) -> Study:
    """Load the study of this folder, or make it. The caller holds the folder's lock."""
    optuna = import_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=options.startup_trials),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(_FIRST_RUNG, reduction_factor=2),
        "none": optuna.pruners.NopPruner,
    }
    path = folder / JOURNAL
    # A killed sweep may leave Optuna's own lock, and an incomplete line.
    path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
    JsonLog(path).close()
    # A resumed sweep continues with other random numbers than it began with.
    seed = options.sampler_seed + len(path.read_bytes().splitlines())
    study: Study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))),
        study_name="sweep",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=max(2, options.trials // 3),
            constant_liar=options.parallel > 1,
            seed=seed,
        ),
        pruner=pruners[options.pruner](),
    )
    return study


class Rungs:
    """Reports the returns of one running trial to its pruner."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._reached = trial, _FIRST_RUNG - 1

    def should_prune(self, fraction: float, score: float) -> bool:
        """Whether a trial that has used this fraction of its budget should end."""
        rung, before = min(RUNGS, int(fraction * RUNGS)), self._reached
        for passed in range(before + 1, rung + 1):
            self._trial.report(score, passed)
        self._reached = max(rung, before)
        return before < rung < RUNGS and self._trial.should_prune()


def state_of(trial: FrozenTrial) -> str:
    """complete, pruned, failed, lost (interrupted, and its values queued again) or running."""
    if trial.state.name == "FAIL":
        return "failed" if NOTE in trial.user_attrs else "lost"
    return str(trial.state.name.lower())


def num_counted(study: Study) -> int:
    """Trials that ended by themselves or were pruned."""
    return sum(state_of(each) in _STATES[:3] for each in study.trials)


def run_dir_of(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:03}"


def result_in(run_dir: Path) -> RunResult | None:
    """The result of a run; None before its end."""
    try:
        return RunResult.load(run_dir / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None


def score_of(result: RunResult) -> float | None:
    """Mean return of the final evaluation or, without one, of training episodes."""
    evaluated = result.evaluation_return
    return result.mean_return_100 if evaluated is None else evaluated


@dataclass(frozen=True)
class SweepTrial:
    """One trial; unknown values are None."""

    number: int
    state: str
    """complete, pruned, failed, or lost: it was interrupted, and is repeated."""
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
    trials: list[SweepTrial] = field(default_factory=list)
    best: SweepTrial | None = None
    best_run: str | None = None
    command: str | None = None
    """Repeats the best run."""

    def text(self) -> str:
        """A table, then the best trial."""
        rows = [["trial", "state", *self.search, "score", "env steps", "seconds", ""]]
        for trial in sorted(self.trials, key=_order):
            values = [trial.values.get(name) for name in self.search]
            values += [trial.score, trial.env_steps, trial.seconds]
            rows.append([str(trial.number), trial.state, *map(short, values), trial.note])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        states = [trial.state for trial in self.trials]
        counts = (f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed"))
        lines.append(f"{', '.join(counts)}; {states.count('lost')} lost and repeated")
        if self.best is None:
            return "\n".join([*lines, "no trial has a score; see the logs of the runs"])
        lines.append(f"best: trial {self.best.number}, score {short(self.best.score)}")
        lines.append(f"repeat it: {self.command or self.best_run}")
        return "\n".join(lines)


def sweep_result(
    study: Study,
    dimensions: Sequence[Dimension],
    folder: Path,
    options: dict[str, Any],
    pruner: str,
) -> SweepResult:
    """The result from what the study and the run directories have stored."""
    finished = [trial for trial in study.trials if state_of(trial) in _STATES]
    trials = [_trial(each, dimensions, folder) for each in finished]
    complete = [trial for trial in trials if trial.state == "complete"]
    best = min(complete, key=_order, default=None)
    best_run = None if best is None else run_dir_of(folder, best.number)
    result = None if best_run is None else result_in(best_run)
    return SweepResult(
        str(options["architecture"]),
        str(options["env"]),
        str(folder),
        pruner,
        {each.name: each.text for each in dimensions},
        trials,
        best,
        None if best_run is None else str(best_run),
        None if result is None else result.command,
    )


def _trial(found: FrozenTrial, dimensions: Sequence[Dimension], folder: Path) -> SweepTrial:
    state, result = state_of(found), result_in(run_dir_of(folder, found.number))
    # A trial that was killed while it was proposed may lack some values.
    proposed = [each for each in dimensions if each.name in found.params]
    score = found.value if state == "complete" else None
    if score is None and result is not None:
        score = result.mean_return_100 if state == "pruned" else score_of(result)
    return SweepTrial(
        found.number,
        state,
        {each.name: each.value(found.params[each.name]) for each in proposed},
        score,
        None if result is None else result.env_steps,
        None if result is None else result.wall_seconds,
        str(found.user_attrs.get(NOTE, "")),
    )


def _order(trial: SweepTrial) -> tuple[int, float, float]:
    """Complete trials first, best at the top; with equal scores, fewer env steps first."""
    score = float("-inf") if trial.score is None else trial.score
    return _STATES.index(trial.state), -score, trial.env_steps or 0


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else format_value(value)
