# SPDX-License-Identifier: Apache-2.0
"""Fills report.html, one self-contained file, from the records of a comparison."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from veldt.compare.figures import Picture
from veldt.compare.machine import machine
from veldt.compare.records import COST_COLUMNS, Record, Records, cost_cells, over_seeds
from veldt.compare.runs import RunTask
from veldt.compare.settings import Comparison
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, Estimate
from veldt.files import write_atomically
from veldt.topology import Topology

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Report:
    """The contents of a report."""

    comparison: Comparison
    command: str
    records: Records
    tasks: list[RunTask]
    topologies: dict[str, Topology]
    """By label."""
    costs: dict[str, dict[str, Any]]
    pictures: list[Picture]
    ceiling: dict[str, float]
    left_out: dict[str, str]
    """Architectures that do not fit, and why."""
    failures: dict[str, str]


def write_report(path: Path, report: Report) -> None:
    given, columns = report.comparison, _columns(report.ceiling["env_steps_per_second"])
    write_page(
        path,
        TEMPLATES / "compare.html",
        title=f"{given.env}: {len(report.topologies)} architectures compared",
        comparison=given,
        limits=_limits(given),
        columns=["method", *columns, "reached", "seeds"],
        rows=[_row(name, runs, columns, given) for name, runs in report.records.items()],
        ceiling=report.ceiling,
        missing=[f"{name} does not fit: {why}" for name, why in report.left_out.items()]
        + [f"{name} failed: {why}" for name, why in report.failures.items()],
        pictures=report.pictures,
        diagrams={name: each.describe("text") for name, each in report.topologies.items()},
        costs=[COST_COLUMNS, *(cost_cells(name, row) for name, row in report.costs.items())],
        machine=machine(),
        command=report.command,
        run_commands=[task.command for task in report.tasks],
    )


def write_page(path: Path, template: Path, **content: Any) -> None:
    """Fill a template, which may extend those of this package, and write the page."""
    templates = Environment(
        loader=FileSystemLoader([TEMPLATES, template.parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters["embedded"] = _data_url
    write_atomically(path, templates.get_template(template.name).render(**content))


def _data_url(png: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


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


def _row(name: str, runs: list[Record], columns: dict[str, Column], given: Comparison) -> list[str]:
    cells = [
        _cell(over_seeds(runs, value), digits, unit, len(runs))
        for value, digits, unit in columns.values()
    ]
    reached = f"{sum(run.result.reached_target for run in runs)} of {len(runs)}"
    return [name, *cells, "-" if given.target_return is None else reached, str(len(runs))]


def _cell(found: Estimate | None, digits: int, unit: str, seeds: int) -> str:
    if found is None:
        return "-"
    value, low, high = (f"{float(x):,.{digits}f}" for x in (found.value, found.low, found.high))
    if low == high:
        return f"{value}{unit}"
    spread = f"[{low}, {high}]" if seeds >= FEWEST_FOR_AN_INTERVAL else f"{low} to {high}"
    return f"{value}{unit} {spread}"
