# SPDX-License-Identifier: Apache-2.0
"""Fills html, one self-contained file, and draws its figure. Needs the extra `plots`."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from veldt.compare.records import (
    COST_COLUMNS,
    RETURN,
    Record,
    Records,
    cost_cells,
    existing,
    machine,
    over_seeds,
)
from veldt.compare.runs import Comparison, RunTask
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, Estimate, joint_curve
from veldt.errors import ConfigurationError
from veldt.files import write_atomically
from veldt.telemetry.log_files import EVALUATION
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
_OVER = {
    "env_steps": "environment steps",
    "seconds": "wall seconds since the program started",
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


def draw(records: Records, path: Path, with_lag: bool = True) -> None:
    """Draw returns over env steps and over seconds, evaluations over env steps where there are
    several, and the distribution of the policy lag; PNG or SVG, by the name of the file."""
    every = [run for runs in records.values() for run in runs]
    panels = [("env_steps", RETURN), ("seconds", RETURN)]
    if any(run.curve("env_steps", EVALUATION)[1].size > 1 for run in every):
        panels.append(("env_steps", EVALUATION))
    count = len(panels) + with_lag
    figure = Figure(figsize=(8.0, 3.5 * count), dpi=120, layout="constrained")
    axes = figure.subplots(count)
    for number, (name, runs) in enumerate(records.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for axis, panel in zip(axes, panels, strict=False):
            _draw_curves(axis, runs, *panel, color=colour, label=name)
        rows = np.trim_zeros(np.sum([run.lag_histogram for run in runs], axis=0), "b")
        if with_lag and rows.size:
            axes[-1].stairs(rows / rows.sum(), color=colour, label=name)
    for axis, (over, metric) in zip(axes, panels, strict=False):
        of = {RETURN: "mean return of 100 episodes", EVALUATION: "mean return when evaluated"}
        axis.set(xlabel=_OVER[over], ylabel=of[metric], xlim=(0, None))
    if with_lag:
        lag = {"xlabel": "policy lag in updates", "ylabel": "share of trained rows"}
        axes[-1].set(xscale="symlog", **lag)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="small")
    if path.suffix == ".svg":
        figure.savefig(path, metadata={"Date": None})
    else:
        save_png(figure, path)


def plot(run_dirs: Sequence[str], out: Path) -> str:
    """Draw the curves of runs that exist into a PNG, an SVG or an HTML page; says what is there."""
    if out.suffix not in (".png", ".svg", ".html"):
        raise ConfigurationError(f"{out} is no picture; give --out a name with .png, .svg or .html")
    records = existing(run_dirs)
    picture = out.with_suffix(".png") if out.suffix == ".html" else out
    draw(records, picture, with_lag=False)
    if out.suffix == ".html":
        content = {"title": "Learning curves", "picture": picture, "machine": machine()}
        write_page(out, TEMPLATES / "plot.html", **content)
    counts = (
        f"{name}: {len(runs)} {'seed' if len(runs) == 1 else 'seeds'}"
        for name, runs in records.items()
    )
    return "\n".join([*counts, str(out)])


def _draw_curves(
    axis: Any, runs: list[Record], over: str, metric: str, color: Any, label: str
) -> None:
    curves = [run.curve(over, metric) for run in runs]
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
