# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, as PNG files. Needs the extra `plots`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from veldt.compare.league_figures import league_figures
from veldt.compare.records import Record, Records, over_seeds
from veldt.compare.statistics import FEWEST_FOR_AN_INTERVAL, joint_curve

_DPI = 120
_COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn, and what it shows."""

    title: str
    caption: str
    path: Path


def draw_all(records: Records, ceiling: dict[str, float], out: Path) -> list[Picture]:
    """Every figure that these runs have data for."""
    drawers: list[Callable[[], tuple[Figure, str, str, str] | None]] = [
        lambda: _curves(records, "env_steps", "environment steps"),
        lambda: _curves(records, "seconds", "wall seconds since the program started"),
        lambda: _times_to_score(records),
        lambda: _throughput(records, ceiling),
        lambda: _lags(records),
        lambda: _replay_ratios(records),
        lambda: _time_shares(records),
        lambda: _memory(records),
    ]
    pictures = []
    for drawn in [*(drawer() for drawer in drawers), *league_figures(records)]:
        if drawn is not None:
            figure, name, title, caption = drawn
            save_png(figure, out / f"{name}.png")
            pictures.append(Picture(title, caption, out / f"{name}.png"))
    return pictures


def save_png(figure: Figure, path: Path) -> None:
    """The same figure gives the same bytes."""
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


Drawn = tuple[Figure, str, str, str] | None


def _curves(records: Records, over: str, label: str) -> Drawn:
    figure, axis = _one_axis(8.0, 4.2)
    for number, (name, runs) in enumerate(records.items()):
        colour = _colour(number)
        for run in runs if len(runs) > 1 else ():
            axis.plot(*run.curve(over), color=colour, alpha=0.25, linewidth=0.8, zorder=1)
        # Time goes on after a run has ended, and what it learned stays; env steps do not.
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
        f"Interquartile mean over seeds, and each seed faintly; {_band_words(records)} Training"
        " episodes, exploration included. A run that reached the target keeps its last value."
        + (" So does any other that has ended." if over == "seconds" else "")
    )
    return figure, f"curves_{over}", f"Learning curves over {label}", caption


def _band_words(records: Records) -> str:
    if all(len(runs) < FEWEST_FOR_AN_INTERVAL for runs in records.values()):
        return "too few seeds for a band."
    return "the band is its 95% bootstrap interval."


def _times_to_score(records: Records) -> Drawn:
    if not any(run.result.reached_target for runs in records.values() for run in runs):
        return None
    figure, axis = _one_axis(8.0, _height(records))
    for row, runs in enumerate(records.values()):
        times = [run.result.seconds_to_target for run in runs if run.result.reached_target]
        axis.plot(times, [row] * len(times), "o", color=_colour(row))
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": "small"}
        axis.annotate(f"{len(times)} of {len(runs)}", (1.01, row), **place)
    _name_rows(axis, records)
    axis.set_xlim(left=0)
    axis.set_xlabel("seconds from the program's start to the confirmed target")
    caption = "A dot per seed; at the right, how many seeds reached the target within the budget."
    return figure, "time_to_score", "Time to score", caption


def _throughput(records: Records, ceiling: dict[str, float]) -> Drawn:
    limit = ceiling["env_steps_per_second"]
    drawn = _bars(records, lambda run: run.result.env_steps_per_second, "env steps per second")
    if drawn is None:
        return None
    figure, axis = drawn
    axis.axvline(limit, color="black", linestyle="--", linewidth=1)
    if max(bar.get_width() for bar in axis.patches) > 0:
        axis.set_xscale("log")  # the slowest and the ceiling may be a thousandfold apart
    place = {"xycoords": ("data", "axes fraction"), "ha": "right", "fontsize": "small"}
    axis.annotate("environments alone", (limit, 1.0), **place)
    caption = (
        f"Steady state. The dashed line is one process with random actions and"
        f" {ceiling['envs']:.0f} environments, measured in the same call; several actors on several"
        " cores may exceed it."
    )
    return figure, "throughput", "Throughput against the environments alone", caption


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
        "Share of learned rows by policy lag: the learner's version minus the version that chose"
        " the action. The last bar is 127 or more. All seeds together."
    )
    return figure, "policy_lag", "Policy lag", caption


def _replay_ratios(records: Records) -> Drawn:
    drawn = _bars(records, lambda run: run.replay_ratio, "rows learned from per env step")
    if drawn is None:
        return None
    caption = "How often each env step was learned from; about 1 without a replay."
    return drawn[0], "replay_ratio", "Replay ratio", caption


def _time_shares(records: Records) -> Drawn:
    bars = [
        (f"{name}: {kind}", stages)
        for name, runs in records.items()
        for kind, stages in runs[0].result.stage_shares.items()
        if any(stages.values())
    ]
    if not bars:
        return None
    stages = list(dict.fromkeys(stage for _, shares in bars for stage in shares))
    figure, axis = _one_axis(8.0, 1.2 + 0.28 * len(bars))
    left = np.zeros(len(bars))
    for number, stage in enumerate(stages):
        widths = np.array([max(0.0, shares.get(stage, 0.0)) for _, shares in bars])
        colour = "lightgrey" if stage == "wait" else _colour(number)
        axis.barh(np.arange(len(bars)), widths, left=left, color=colour, label=stage)
        left += widths
    axis.set_yticks(np.arange(len(bars)), [name for name, _ in bars], fontsize="small")
    axis.invert_yaxis()
    axis.set_xlabel("share of wall time since the run settled")
    axis.legend(fontsize="x-small", ncols=6, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    caption = "Mean over the nodes of each role, first seed. What is missing to 1 was not timed."
    return figure, "time_shares", "Where each role's time goes", caption


def _memory(records: Records) -> Drawn:
    def gibibytes(run: Record) -> float | None:
        return None if run.peak_memory_bytes is None else run.peak_memory_bytes / 2**30

    drawn = _bars(records, gibibytes, "GiB")
    if drawn is None:
        return None
    caption = (
        "Proportional set size of all processes of a run, looked at once per second; pages shared"
        " between processes count once, those shared with other programs in part. What processes of"
        " a Ray cluster use is not in it."
    )
    return drawn[0], "memory", "Peak memory", caption


def _bars(
    records: Records, value: Callable[[Record], float | None], label: str
) -> tuple[Figure, Any] | None:
    """A bar per architecture with its interval; None where nothing is known."""
    estimates = [over_seeds(runs, value) for runs in records.values()]
    if not any(estimates):
        return None
    figure, axis = _one_axis(8.0, _height(records))
    for row, found in enumerate(estimates):
        if found is not None:
            spread = [[found.value - found.low], [found.high - found.value]]
            axis.barh(row, found.value, color=_colour(row), xerr=np.maximum(spread, 0.0), capsize=3)
            number = float(found.value)
            text = f"  {number:,.0f}" if number >= 100 else f"  {number:.3g}"
            axis.annotate(text, (float(found.high), row), va="center", fontsize="small")
    _name_rows(axis, records)
    axis.set_xlabel(label)
    return figure, axis


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


def _height(records: Records) -> float:
    return 1.0 + 0.35 * len(records)


def _colour(number: int) -> Any:
    return _COLOURS[number % len(_COLOURS)]
