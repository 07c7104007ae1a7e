# SPDX-License-Identifier: Apache-2.0
"""The trials of a sweep in Optuna's journal: asked for, judged while they go, told how they ended.

Only the sweep's own process writes the journal, and it holds a lock on the folder while it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.errors import extra_module
from veldt.sweeps.options import SweepOptions
from veldt.sweeps.search import Dimension
from veldt.telemetry.log_files import JsonLog

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "journal.jsonl"
RUNGS = 10
"""Points of a trial's budget at which its returns are held against those of others."""
_FIRST_RUNG = 2  # before, a run has seen too little to be judged
LOST, RETRY_OF, NOTE = "lost", "retry_of", "note"


def check_installed() -> None:
    extra_module("optuna", "veldt sweep searches with optuna", extra="sweep")


class Study:
    """One sweep. Trials that were running when it was killed are lost, and tried once more."""

    def __init__(
        self,
        folder: Path,
        dimensions: Sequence[Dimension],
        options: SweepOptions,
        start: Mapping[str, Any],
    ) -> None:
        """`start`: what the options are without a search; tried first where it is complete."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / JOURNAL
        # What a killed sweep may have left: a torn line, and Optuna's own lock.
        (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)
        JsonLog(path).close()
        self._optuna, self._dimensions = optuna, {each.name: each for each in dimensions}
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
            sampler=_sampler(optuna, options, len(path.read_bytes().splitlines())),
            pruner=_pruner(optuna, options),
        )
        self._running: dict[int, Trial] = {}
        self._reported: dict[int, int] = {}
        if not self._study.trials and len(start) == len(dimensions):
            self._study.enqueue_trial(dict(start))

    @property
    def trials(self) -> list[FrozenTrial]:
        return list(self._study.get_trials(deepcopy=False))

    def left_running(self) -> list[int]:
        """Trials that nobody has told the end of, and that are not this process's."""
        running = self._optuna.trial.TrialState.RUNNING
        return [
            trial.number
            for trial in self.trials
            if trial.state == running and trial.number not in self._running
        ]

    def counted(self) -> int:
        """Trials that have ended by themselves or were pruned."""
        return sum(trial.state.is_finished() and not is_lost(trial) for trial in self.trials)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """The next trial: its number, and the options it is to have."""
        self._enqueue_lost()
        trial = self._study.ask(self._distributions())
        self._running[trial.number] = trial
        values = {name: self._dimensions[name].value(v) for name, v in trial.params.items()}
        return trial.number, values

    def should_prune(self, number: int, fraction: float, score: float) -> bool:
        """Whether a trial that has used this fraction of its budget is worse than it may be."""
        trial, rung = self._running[number], min(RUNGS, int(fraction * RUNGS))
        before = self._reported.get(number, _FIRST_RUNG - 1)
        for passed in range(before + 1, rung + 1):
            trial.report(score, passed)
        self._reported[number] = max(rung, before)
        return rung > before and rung < RUNGS and bool(trial.should_prune())

    def complete(self, number: int, score: float) -> None:
        self._tell(number, "COMPLETE", score)

    def pruned(self, number: int, note: str) -> None:
        self._note(number, NOTE, note)
        self._tell(number, "PRUNED")

    def failed(self, number: int, note: str) -> None:
        self._note(number, NOTE, note)
        self._tell(number, "FAIL")

    def lose(self, number: int) -> None:
        """It did not end by itself; its values will be tried again."""
        self._note(number, LOST, True)
        self._tell(number, "FAIL")

    def _tell(self, number: int, state: str, score: float | None = None) -> None:
        self._running.pop(number, None)
        self._study.tell(number, score, state=self._optuna.trial.TrialState[state])

    def _note(self, number: int, key: str, value: object) -> None:
        stored = self.trials[number]._trial_id  # of a sweep that was killed nothing else is left
        self._optuna.trial.Trial(self._study, stored).set_user_attr(key, value)

    def _enqueue_lost(self) -> None:
        """Derived from what is written, so that being killed in between loses nothing."""
        trials = self.trials
        retried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
        for trial in trials:
            if is_lost(trial) and trial.number not in retried:
                self._study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})

    def _distributions(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        made = self._optuna.distributions
        for name, each in self._dimensions.items():
            if each.choices:
                found[name] = made.CategoricalDistribution(each.choices)
            elif each.whole:
                found[name] = made.IntDistribution(int(each.low), int(each.high), log=each.log)
            else:
                found[name] = made.FloatDistribution(each.low, each.high, log=each.log)
        return found


def is_lost(trial: FrozenTrial) -> bool:
    return bool(trial.user_attrs.get(LOST))


def _sampler(optuna: Any, options: SweepOptions, lines: int) -> Any:
    """A third of the trials is drawn at random before the model proposes. A sweep that goes on
    draws others than it did when it began."""
    return optuna.samplers.TPESampler(
        n_startup_trials=max(2, options.trials // 3),
        constant_liar=options.parallel > 1,
        seed=options.sampler_seed + lines,
    )


def _pruner(optuna: Any, options: SweepOptions) -> Any:
    pruners = optuna.pruners
    if options.pruner == "none":
        return pruners.NopPruner()
    if options.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=_FIRST_RUNG, reduction_factor=2)
    return pruners.MedianPruner(n_startup_trials=options.startup_trials)
