# SPDX-License-Identifier: Apache-2.0
"""From the runs of the scoreboard to benchmarks/results/scores.json: medians, intervals, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from veldt.compare.statistics import estimate

MOST_LOAD_PER_CORE = 1.5  # before a run; the one before it leaves about one per core behind
CORES_OF_A_TIMED_RUN = 2  # one that had fewer shared them: its steps count, its seconds do not
Run = dict[str, Any]
Spread = dict[str, float]
Document = dict[str, Any]


def summary(runs: list[Run], order: Sequence[str] = ()) -> Document:
    """By task, in this order, and contestant. Where a seed was run again, its last run counts; one
    that was made with other constants than those of today is marked `superseded` and does not."""
    counted = [run for run in runs if not run.get("superseded")]
    latest = {(r["task"], r["contestant"], r["seed"]): r for r in counted}
    machines = [run["machine"] for run in latest.values()]
    commands = list(dict.fromkeys(machine["command"] for machine in machines))
    entries: dict[str, dict[str, Any]] = {}
    for task, contestant in dict.fromkeys((t, c) for t, c, _ in latest):
        own = [r for (t, c, _), r in latest.items() if (t, c) == (task, contestant)]
        entries.setdefault(task, {})[contestant] = _entry([r for r in own if "error" not in r])
    return {
        "machine": {**(machines[-1] if machines else {}), "commands": commands},
        "commits": sorted({machine["commit"] for machine in machines}),
        "tasks": {task: entries[task] for task in (*order, *entries) if task in entries},
        "time_ratios": _time_ratios([r for r in latest.values() if r["target"] is None]),
        "runs": [_without_machine(run) for run in latest.values()],
    }


def _without_machine(run: Run) -> Run:
    return {name: value for name, value in run.items() if name != "machine"}


def _entry(runs: list[Run]) -> dict[str, Any]:
    """Seeds that did not reach the target count with their limit, so they cannot flatter; seconds
    are those of runs that had the cores for it. Without a target, they are those that the steps
    asked for took."""
    if runs and runs[0]["target"] is None:
        return _score_entry(runs)
    timed = [r for r in runs if _had_its_cores(r)]
    seconds = [r["seconds_to_target"] if r["reached"] else r["max_seconds"] for r in timed]
    steps = [r["env_steps_to_target"] if r["reached"] else r["env_steps"] for r in runs]
    returns = [r["evaluation_return"] for r in runs if r["evaluation_return"] is not None]
    return {
        "seeds": len(runs),
        "reached": sum(r["reached"] for r in runs),
        "target": runs[0]["target"] if runs else None,
        "max_seconds": max((r["max_seconds"] for r in runs), default=None),
        "seconds": _spread(seconds),
        "steps": _spread(steps),
        "evaluation": _spread(returns),
        "preset": (runs[0].get("chosen") or {}).get("preset") if runs else None,
    }


def _had_its_cores(run: Run) -> bool:
    """`untimed`: other work went on beside it, or its rivals ran on a day of another pace."""
    return run["cores"] >= CORES_OF_A_TIMED_RUN and not run.get("untimed")


def _score_entry(runs: list[Run]) -> dict[str, Any]:
    """A run that was cut off before its steps has no score to compare, and one that began on a busy
    machine no time: what it learned from its steps does not depend on that."""
    whole = _whole(runs)
    return {
        "seeds": len(whole),
        "target": None,
        "steps_asked": runs[0]["steps_asked"],
        "seconds": _spread([run["wall_seconds"] for run in _quiet(whole)]),
        "evaluation": _spread([run["evaluation_return"] for run in whole]),
        "training": _spread([run["mean_return_100"] for run in whole]),
        "preset": (runs[0].get("chosen") or {}).get("preset"),
    }


def _whole(runs: list[Run]) -> list[Run]:
    return [run for run in runs if "error" not in run and run["env_steps"] >= run["steps_asked"]]


def _quiet(runs: list[Run]) -> list[Run]:
    alone = [run for run in runs if _had_its_cores(run)]
    return [run for run in alone if run["load_before"] <= MOST_LOAD_PER_CORE * run["cores"]]


def _time_ratios(runs: list[Run]) -> list[dict[str, Any]]:
    """By task without a target, the seconds of Veldt over those of a peer with the same seed. Only
    runs of one call have a ratio: between calls the machine's pace differs."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    timed = _quiet(_whole(runs))
    for own, peer in product(timed, timed):
        is_pair = own["contestant"].startswith("veldt") and peer["contestant"].startswith("sb3")
        same = (own[name] == peer[name] for name in ("task", "seed", "machine"))
        if is_pair and all(same):
            key = own["task"], own["contestant"], peer["contestant"]
            ratio = own["wall_seconds"] / peer["wall_seconds"]
            found.setdefault(key, {})[own["seed"]] = round(ratio, 4)
    return [
        {
            "task": task,
            "contestant": name,
            "peer": peer,
            "by_seed": dict(sorted(ratios.items())),
            "median": statistics.median(ratios.values()),
        }
        for (task, name, peer), ratios in found.items()
    ]


def _spread(values: list[float]) -> Spread | None:
    if not values:
        return None
    found = estimate(np.asarray(values, dtype=np.float64))
    return {
        "count": len(values),
        "median": float(statistics.median(values)),
        "iqm": float(found.value),
        "low": float(found.low),
        "high": float(found.high),
    }
