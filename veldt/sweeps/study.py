# SPDX-License-Identifier: Apache-2.0
"""The Optuna study of a sweep, stored in a journal in the sweep's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.errors import extra_module
from veldt.sweeps.options import SweepOptions
from veldt.telemetry.log_files import JsonLog

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "journal.jsonl"
RUNGS = 10
"""Points of a trial's budget at which its returns are compared with those of others."""
_FIRST_RUNG = 2  # earlier returns say too little
NOTE, RETRY_OF = "note", "retry_of"
"""User attributes: why a trial ended, and the lost trial whose values it repeats."""


def import_optuna() -> Any:
    return extra_module("optuna", "veldt sweep searches with optuna", extra="sweep")


def open_study(folder: Path, options: SweepOptions) -> Study:
    """Load the study of this folder, or make it. The caller holds the folder's lock."""
    optuna = import_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / JOURNAL
    # What a killed sweep may have left: Optuna's own lock, and an incomplete line.
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
        pruner=_pruner(optuna, options),
    )
    return study


def _pruner(optuna: Any, options: SweepOptions) -> Any:
    pruners = optuna.pruners
    if options.pruner == "none":
        return pruners.NopPruner()
    if options.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=_FIRST_RUNG, reduction_factor=2)
    return pruners.MedianPruner(n_startup_trials=options.startup_trials)


class Rungs:
    """Reports the returns of one running trial to its pruner."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._reached = trial, _FIRST_RUNG - 1

    def should_prune(self, fraction: float, score: float) -> bool:
        """Whether a trial that has used this fraction of its budget shall end."""
        rung, before = min(RUNGS, int(fraction * RUNGS)), self._reached
        for passed in range(before + 1, rung + 1):
            self._trial.report(score, passed)
        self._reached = max(rung, before)
        return before < rung < RUNGS and self._trial.should_prune()


def retry(study: Study, trial: FrozenTrial | Trial) -> None:
    """Queue the values of a trial that did not end by itself, unless that has been done."""
    if trial.number not in lost_trials(study.trials):
        study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})


def lost_trials(trials: Sequence[FrozenTrial]) -> set[int]:
    """Numbers of the trials that are repeated by others."""
    return {each.user_attrs[RETRY_OF] for each in trials if RETRY_OF in each.user_attrs}


def num_counted(study: Study) -> int:
    """Trials that ended by themselves or were pruned."""
    trials = study.trials
    lost = lost_trials(trials)
    return sum(each.state.is_finished() and each.number not in lost for each in trials)
