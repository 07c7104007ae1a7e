# SPDX-License-Identifier: Apache-2.0
"""report.html of a comparison: what its template is filled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veldt.compare.figures import Picture
from veldt.compare.page import TEMPLATES, write_page
from veldt.compare.records import Record, Records, over_seeds
from veldt.compare.runs import RunTask
from veldt.compare.settings import Comparison
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, Estimate
from veldt.topology import Topology


@dataclass(frozen=True)
class Report:
    """All that a report is made from."""

    comparison: Comparison
    records: Records
    pictures: list[Picture]
    topologies: dict[str, Topology]
    """By label."""
    tasks: list[RunTask]
    left_out: dict[str, str]
    """Architectures that do not fit, and why."""
    failures: dict[str, str]
    ceiling: dict[str, float]
    machine: dict[str, Any]
    command: str
    evidence: list[list[str]]
    """Header and rows: bytes, waiting, lag."""


def write_report(path: Path, report: Report) -> None:
    columns = _columns(report.ceiling["env_steps_per_second"])
    write_page(
        path,
        TEMPLATES / "compare.html",
        title=f"{report.comparison.env}: {len(report.topologies)} architectures compared",
        comparison=report.comparison,
        limits=_limits(report.comparison),
        spread=_spread_words(report.comparison.seeds),
        columns=["method", *columns, "reached", "seeds"],
        rows=[_row(name, runs, columns, report) for name, runs in report.records.items()],
        ceiling=report.ceiling,
        missing=[f"{name} does not fit: {why}" for name, why in report.left_out.items()]
        + [f"{name} failed: {why}" for name, why in report.failures.items()],
        pictures=report.pictures,
        diagrams={
            name: {
                "text": each.describe("text"),
                "mermaid": each.describe("mermaid"),
            }
            for name, each in report.topologies.items()
        },
        evidence=report.evidence,
        machine=report.machine,
        command=report.command,
        run_commands=[task.command for task in report.tasks],
    )


def _spread_words(seeds: int) -> str:
    if seeds == 1:
        return "Values are of one seed; how much they vary is not known."
    if seeds < FEWEST_FOR_AN_INTERVAL:
        return "Values are means; with two seeds, what follows them is the range of the two."
    return (
        "Values are interquartile means over seeds with 95% bootstrap intervals; with few seeds"
        " these are wide."
    )


def _limits(given: Comparison) -> list[str]:
    limits = [
        f"{given.max_seconds:g} seconds" if given.max_seconds else "",
        f"{given.total_env_steps:,} environment steps" if given.total_env_steps else "",
        f"a confirmed return of {given.target_return:g}" if given.target_return else "",
    ]
    return [limit for limit in limits if limit]


Column = tuple[Callable[[Record], float | None], int, str]
"""A value of each run, its digits and its unit."""


def _columns(ceiling: float) -> dict[str, Column]:
    def share(run: Record) -> float | None:
        rate = run.result.env_steps_per_second
        return None if rate is None else 100 * rate / ceiling

    return {
        "time (s)": (lambda run: run.result.seconds_to_target or run.result.wall_seconds, 1, ""),
        "score": (lambda run: run.result.evaluation_return, 1, ""),
        "env steps": (lambda run: run.result.env_steps, 0, ""),
        "env steps/s": (lambda run: run.result.env_steps_per_second, 0, ""),
        "of the env-only ceiling": (share, 0, "%"),
        "lag (updates)": (lambda run: run.result.policy_lag.get("mean"), 2, ""),
        "replay ratio": (lambda run: run.replay_ratio, 2, ""),
    }


def _row(name: str, runs: list[Record], columns: dict[str, Column], report: Report) -> list[str]:
    cells = [
        _shown(over_seeds(runs, value), digits, unit, len(runs))
        for value, digits, unit in columns.values()
    ]
    reached = f"{sum(run.result.reached_target for run in runs)} of {len(runs)}"
    has_target = report.comparison.target_return is not None
    return [name, *cells, reached if has_target else "-", str(len(runs))]


def _shown(found: Estimate | None, digits: int, unit: str, seeds: int) -> str:
    if found is None:
        return "-"
    value, low, high = (
        f"{float(number):,.{digits}f}" for number in (found.value, found.low, found.high)
    )
    if low == high:
        return f"{value}{unit}"
    spread = f"[{low}, {high}]" if seeds >= FEWEST_FOR_AN_INTERVAL else f"{low} to {high}"
    return f"{value}{unit} {spread}"
