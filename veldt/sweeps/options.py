# SPDX-License-Identifier: Apache-2.0
"""The options of `veldt sweep` itself; those of `veldt train` come beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from veldt.options.checked import Bounds, Count, Options

PRUNERS = {
    "median": "a trial is ended early when its return is below the median of those before it",
    "halving": "after 20, 40 and 80% of the budget the better half goes on (successive halving)",
    "none": "every trial uses its whole budget",
}


@dataclass(frozen=True)
class SweepOptions(Options):
    """How options are searched."""

    trials: Count = 12
    """Runs that are made, pruned ones included."""
    parallel: Annotated[int, Bounds(1, 1024)] = 1
    """Runs side by side, each a process of its own."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose return is below the median of those before it; halving: successive
    halving, the better half goes on after 20, 40 and 80% of the budget; none."""
    startup_trials: Count = 3
    """Trials that must have ended before the median prunes."""
    sampler_seed: Annotated[int, Bounds(0, 2**31)] = 0
    """Fixes what is proposed, as far as scores are the same."""
    out: str | None = None
    """Folder of the sweep; default: sweeps/<architecture>-<env>. The same command goes on there."""


def take_sweep_options(options: dict[str, Any]) -> SweepOptions:
    """Take what is the sweep's out of options that are mixed with those of its runs."""
    names = {entry.name for entry in fields(SweepOptions)}
    return SweepOptions(**{name: options.pop(name) for name in names & set(options)})
