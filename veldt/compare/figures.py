# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, as PNG files. Needs the extra `plots`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from veldt.compare.records import Record, Records
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, joint_curve

_DPI = 120
_COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Picture:
    """A drawn figure."""

    title: str
    caption: str
    path: Path


Drawn = tuple[Figure, str, str, str] | None
"""Figure, file name, title and caption; None without data."""


def draw_all(records: Records, out: Path) -> list[Picture]:
    """Draw every figure that these runs have data for."""
    drawn: list[Drawn] = [
        _curves(records, "env_steps", "environment steps"),
        _curves(records, "seconds", "wall seconds since the program started"),
        _times_to_score(records),
        _lags(records),
    ]
    pictures = []
    for figure, name, title, caption in filter(None, drawn):
        save_png(figure, out / f"{name}.png")
        pictures.append(Picture(title, caption, out / f"{name}.png"))
    return pictures


def save_png(figure: Figure, path: Path) -> None:
    """Write a PNG without metadata, so that equal figures are equal files."""
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def _curves(records: Records, over: str, label: str) -> Drawn:
    figure, axis = _one_axis(8.0, 4.2)
    for number, (name, runs) in enumerate(records.items()):
        colour = _colour(number)
        for run in runs if len(runs) > 1 else ():
            axis.plot(*run.curve(over), color=colour, alpha=0.25, linewidth=0.8, zorder=1)
        # Wall time passes after a run has ended, env steps do not.
        held = [over == "seconds" or run.result.reached_target for run in runs]
        joint = joint_curve([run.curve(over) for run in runs], held)
        if joint is None:
            continue
        grid, curve = joint
        axis.plot(grid, curve.value, color=colour, label=name)
        if len(runs) >= FEWEST_FOR_AN_INTERVAL:
            axis.fill_between(grid, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if not axis.lines:
        return None
    axis.set_xlabel(label)
    axis.set_ylabel("mean return of the last 100 episodes")
    axis.set_xlim(left=0)
    if axis.get_ylim()[0] > 0:
        axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")
    caption = (
        "Interquartile mean over seeds with its 95% bootstrap interval, and each seed in a lighter"
        " line. Returns are of training episodes. Finished runs keep their last value."
    )
    return figure, f"curves_{over}", f"Learning curves over {label}", caption


def _times_to_score(records: Records) -> Drawn:
    if not any(run.result.reached_target for runs in records.values() for run in runs):
        return None
    figure, axis = _one_axis(8.0, 1.0 + 0.35 * len(records))
    for row, runs in enumerate(records.values()):
        times = [run.result.seconds_to_target for run in runs if run.result.reached_target]
        axis.plot(times, [row] * len(times), "o", color=_colour(row))
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": "small"}
        axis.annotate(f"{len(times)} of {len(runs)}", (1.01, row), **place)
    _name_rows(axis, records)
    axis.set_xlim(left=0)
    axis.set_xlabel("seconds from the program's start to the confirmed target")
    caption = "One dot per seed; at the right, how many seeds reached the target."
    return figure, "time_to_score", "Time to score", caption


def _lags(records: Records) -> Drawn:
    shown = {name: _joined_histogram(runs) for name, runs in records.items()}
    shown = {name: histogram for name, histogram in shown.items() if histogram.sum()}
    if not shown:
        return None
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.1 * lines), dpi=_DPI, layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    for axis, (name, histogram) in zip(axes, shown.items(), strict=False):
        colour = _colour(list(records).index(name))
        axis.bar(np.arange(histogram.size), histogram / histogram.sum(), width=1.0, color=colour)
        axis.set_title(name, fontsize="small")
        axis.set_xlabel("lag in updates", fontsize="small")
    caption = (
        "Share of trained rows by policy lag: updates between choosing the action and learning from"
        " it. The last bar is 127 or more."
    )
    return figure, "policy_lag", "Policy lag", caption


def _joined_histogram(runs: list[Record]) -> np.ndarray:
    total = np.zeros(max((run.lag_histogram.size for run in runs), default=0))
    for run in runs:
        total[: run.lag_histogram.size] += run.lag_histogram
    return total


def _one_axis(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:,.6g}" if x < 1e6 else f"{x:,.0f}")
    )
    return figure, axis


def _name_rows(axis: Any, records: Records) -> None:
    axis.set_yticks(np.arange(len(records)), list(records))
    axis.set_ylim(len(records) - 0.5, -0.5)


def _colour(number: int) -> Any:
    return _COLOURS[number % len(_COLOURS)]
