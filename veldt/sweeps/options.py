# SPDX-License-Identifier: Apache-2.0
"""The options of `veldt sweep` besides those of `veldt train`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from veldt.options.checked import Bounds, Count, Options

PRUNERS = {
    "median": "a trial is ended early when its return is below the median of those before it",
    "halving": "after 20, 40 and 80% of the budget the better half continues",
    "none": "every trial uses its whole budget",
}


@dataclass(frozen=True)
class SweepOptions(Options):
    """How options are searched."""

    trials: Count = 12
    """Number of runs, including pruned ones."""
    parallel: Annotated[int, Bounds(1, 1024)] = 1
    """Runs at a time, each a process of its own."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose return is below the median of earlier ones; halving: successive
    halving, the better half continues after 20, 40 and 80% of the budget; none."""
    startup_trials: Count = 3
    """Trials that must end before the median prunes."""
    sampler_seed: Annotated[int, Bounds(0, 2**31)] = 0
    """Seed of the proposals; they also depend on the scores."""
    out: str | None = None
    """Folder of the sweep [sweeps/<architecture>-<env>]; the same command continues there."""


def take_sweep_options(options: dict[str, Any]) -> SweepOptions:
    """Remove the sweep's options from a mapping that also holds those of its runs."""
    names = {entry.name for entry in fields(SweepOptions)}
    return SweepOptions(**{name: options.pop(name) for name in names & set(options)})
