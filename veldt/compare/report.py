# SPDX-License-Identifier: Apache-2.0
"""Fills html, one self-contained file, and draws its figure. Needs the extra `plots`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from veldt.compare.records import COST_COLUMNS, Record, Records, cost_cells, machine, over_seeds
from veldt.compare.runs import Comparison, RunTask
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, Estimate, joint_curve
from veldt.files import write_atomically
from veldt.telemetry.result import RunResult

TEMPLATES = Path(__file__).with_name("templates")
FIGURE_FILE = "figure.png"
_COLUMNS = ("method", "time (s)", "score", "env steps", "env steps/s",
            "lag (updates)", "replay ratio", "reached", "seeds")  # fmt: skip
_LIMITS = {
    "max_seconds": "{:g} seconds",
    "total_env_steps": "{:,} environment steps",
    "target_return": "a confirmed return of {:g}",
}
_COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]


def write_report(
    out: Path,
    given: Comparison,
    command: str,
    records: Records,
    tasks: list[RunTask],
    costs: dict[str, dict[str, Any]],
    missing: list[str],
) -> None:
    """Write FIGURE_FILE and html into the folder `out`.

    `costs` are by label; `missing` says which architectures have no row, and why."""
    draw(records, out / FIGURE_FILE)
    write_page(
        out / "report.html",
        TEMPLATES / "compare.html",
        title=f"{given.env}: {len(costs)} architectures compared",
        comparison=given,
        limits=[
            text.format(getattr(given, name))
            for name, text in _LIMITS.items()
            if getattr(given, name) is not None
        ],
        rows=[_COLUMNS, *(_row(name, runs, given) for name, runs in records.items())],
        missing=missing,
        picture=out / FIGURE_FILE,
        costs=[COST_COLUMNS, *(cost_cells(name, row) for name, row in costs.items())],
        machine=machine(),
        command=command,
        run_commands=[task.command for task in tasks],
    )


def draw(records: Records, path: Path) -> None:
    """Draw returns over env steps and over seconds, and the distribution of the policy lag."""
    figure = Figure(figsize=(8.0, 10.5), dpi=120, layout="constrained")
    by_steps, by_seconds, lags = figure.subplots(3)
    for number, (name, runs) in enumerate(records.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for axis, over in ((by_steps, "env_steps"), (by_seconds, "seconds")):
            _draw_curves(axis, runs, over, color=colour, label=name)
        rows = np.trim_zeros(np.sum([run.lag_histogram for run in runs], axis=0), "b")
        if rows.size:
            lags.stairs(rows / rows.sum(), color=colour, label=name)
    by_steps.set(xlabel="environment steps")
    by_seconds.set(xlabel="wall seconds since the program started")
    for axis in (by_steps, by_seconds):
        axis.set(ylabel="mean return of 100 episodes", xlim=(0, None))
    lags.set(xscale="symlog", xlabel="policy lag in updates", ylabel="share of trained rows")
    for axis in (by_steps, by_seconds, lags):
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="small")
    save_png(figure, path)


def _draw_curves(axis: Any, runs: list[Record], over: str, color: Any, label: str) -> None:
    curves = [run.curve(over) for run in runs]
    for each in curves if len(curves) > 1 else ():
        axis.plot(*each, color=color, alpha=0.25, linewidth=0.8, zorder=1)
    # Wall time passes after a run has ended, env steps do not.
    held = [over == "seconds" or run.result.reached_target for run in runs]
    joint = joint_curve(curves, held)
    if joint is None:
        return
    grid, curve = joint
    axis.plot(grid, curve.value, color=color, label=label)
    if len(runs) >= FEWEST_FOR_AN_INTERVAL:
        axis.fill_between(grid, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)


def save_png(figure: Figure, path: Path) -> None:
    """Write a PNG without metadata, so that equal figures are equal files."""
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def write_page(path: Path, template: Path, **content: Any) -> None:
    """Fill a template, which may extend those of this package; write the page."""
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


def _row(name: str, runs: list[Record], given: Comparison) -> list[str | tuple[str, str]]:
    """The cells of one architecture, for _COLUMNS."""

    def cell(value: Callable[[RunResult], float | None], digits: int = 1) -> tuple[str, str]:
        return _cell(over_seeds(runs, lambda run: value(run.result)), digits, len(runs))

    reached = f"{sum(run.result.reached_target for run in runs)} of {len(runs)}"
    return [
        name,
        cell(lambda result: result.seconds_to_target or result.wall_seconds),
        cell(lambda result: result.evaluation_return),
        cell(lambda result: result.env_steps, 0),
        cell(lambda result: result.env_steps_per_second, 0),
        cell(lambda result: result.policy_lag.get("mean"), 2),
        _cell(over_seeds(runs, lambda run: run.replay_ratio), 2, len(runs)),
        "-" if given.target_return is None else reached,
        str(len(runs)),
    ]


def _cell(found: Estimate | None, digits: int, seeds: int) -> tuple[str, str]:
    """The value, and its interval or the range of two seeds."""
    if found is None:
        return "-", ""
    value, low, high = (f"{float(x):,.{digits}f}" for x in (found.value, found.low, found.high))
    if low == high:
        return value, ""
    return value, f"[{low}, {high}]" if seeds >= FEWEST_FOR_AN_INTERVAL else f"{low} to {high}"
