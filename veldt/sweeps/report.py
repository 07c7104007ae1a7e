# SPDX-License-Identifier: Apache-2.0
"""The result of a sweep: a table of its trials, the best one, and its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.options.text import format_value
from veldt.sweeps.runs import TrialFiles, score_of
from veldt.sweeps.search import Dimension
from veldt.sweeps.study import NOTE, RETRY_OF, lost_trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class SweepTrial:
    """One trial; unknown values are None."""

    number: int
    state: str
    """complete, pruned, failed or lost: it was interrupted, and another trial repeats it."""
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

    def count(self, state: str) -> int:
        return sum(trial.state == state for trial in self.trials)

    def text(self) -> str:
        """A table, then the best trial."""
        names = list(self.search)
        rows = [["trial", "state", *names, "score", "env steps", "seconds", ""]]
        rows += [_row(trial, names) for trial in sorted(self.trials, key=_order)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        counts = (f"{self.count(state)} {state}" for state in ("complete", "pruned", "failed"))
        lines.append(f"{', '.join(counts)}; {self.count('lost')} lost and repeated")
        if self.best is None:
            return "\n".join([*lines, "no trial has a score; see the logs of the runs"])
        lines.append(f"best: trial {self.best.number}, score {_number(self.best.score)}")
        lines.append(f"repeat it: {self.command or self.best_run}")
        return "\n".join(lines)


def sweep_result(
    study: Study,
    dimensions: Sequence[Dimension],
    folder: Path,
    options: dict[str, Any],
    pruner: str,
) -> SweepResult:
    found = study.trials
    lost = lost_trials(found)
    trials = [
        _trial(each, dimensions, folder, each.number in lost)
        for each in found
        if each.state.is_finished()
    ]
    complete = [trial for trial in trials if trial.state == "complete"]
    best = min(complete, key=_order, default=None)
    files = None if best is None else TrialFiles.of(folder, best.number)
    result = None if files is None else files.result()
    return SweepResult(
        str(options["architecture"]),
        str(options["env"]),
        str(folder),
        pruner,
        {each.name: each.text for each in dimensions},
        trials,
        best,
        None if files is None else str(files.run_dir),
        None if result is None else result.command,
    )


def _trial(
    found: FrozenTrial, dimensions: Sequence[Dimension], folder: Path, is_lost: bool
) -> SweepTrial:
    states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    state = "lost" if is_lost else states[found.state.name]
    result = TrialFiles.of(folder, found.number).result()
    # A trial that was killed while it was proposed may lack some values.
    proposed = [each for each in dimensions if each.name in found.params]
    values = {each.name: each.value(found.params[each.name]) for each in proposed}
    note = str(found.user_attrs.get(NOTE, ""))
    if RETRY_OF in found.user_attrs:
        note = "; ".join(filter(None, [f"repeats trial {found.user_attrs[RETRY_OF]}", note]))
    score = found.value if state == "complete" else None
    if score is None and result is not None:
        score = result.mean_return_100 if state == "pruned" else score_of(result)
    return SweepTrial(
        found.number,
        state,
        values,
        score,
        None if result is None else result.env_steps,
        None if result is None else result.wall_seconds,
        note,
    )


def _order(trial: SweepTrial) -> tuple[int, float, float]:
    """Complete trials first, best at the top; with equal scores, fewer env steps first."""
    states = ("complete", "pruned", "failed", "lost")
    score = float("-inf") if trial.score is None else trial.score
    return states.index(trial.state), -score, trial.env_steps or 0


def _row(trial: SweepTrial, names: list[str]) -> list[str]:
    values = [_number(trial.values.get(name)) for name in names]
    steps = "-" if trial.env_steps is None else f"{trial.env_steps:,}"
    seconds = "-" if trial.seconds is None else f"{trial.seconds:.1f}"
    numbers = [_number(trial.score), steps, seconds]
    return [str(trial.number), trial.state, *values, *numbers, trial.note]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else format_value(value)
