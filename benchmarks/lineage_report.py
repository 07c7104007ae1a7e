# SPDX-License-Identifier: Apache-2.0
"""What lineage.jsonl says: the section of docs/evolution.md, and its figure.

PYTHONPATH=. python benchmarks/lineage_report.py [FILE.jsonl]    draws the figure, prints the text
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.claims.claim import Criterion

_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "benchmarks" / "results" / "lineage.jsonl"
FIGURE = _ROOT / "docs" / "images" / "lineage.png"
PAPERS = (
    ("gorila", "dqn", "in 41 of 49 games"),
    ("a3c", "gorila", "in the median of 57 games"),
    ("a2c", "a3c", "or equal"),
    ("ppo", "a2c", "best of three in 30 of 49 games, A2C in one"),
    ("apex", "a3c", "in the median of 57 games"),
    ("impala", "a3c", "in the median of 57 games"),
)
"""Which system the papers put above which, and where."""
_STYLES = {
    "dqn": ("#1f77b4", "-"), "gorila": ("#17becf", "-"), "apex": ("#0b2e6b", "-"),
    "a3c": ("#ff7f0e", "--"), "a2c": ("#d62728", "--"), "ga3c": ("#8c564b", "--"),
    "ppo": ("#000000", "-."), "impala": ("#2ca02c", "-"), "seed_rl": ("#9acd32", "-"),
    "sample_factory": ("#9467bd", "-."),
}  # fmt: skip
_GRID_POINTS = 60
Run = dict[str, Any]


class Interval(NamedTuple):
    """Mean over seeds and half of its Student-t interval (95%)."""

    mean: float
    half: float

    def __str__(self) -> str:
        digits = 2 - sum(abs(self.mean) >= bound for bound in (10, 100))
        half = "" if np.isnan(self.half) else f" ± {self.half:,.{digits}f}"
        return f"{self.mean:,.{digits}f}{half}"

    @property
    def sign(self) -> str:
        if not abs(self.mean) > self.half:
            return "undecided"
        return "above" if self.mean > 0 else "below"


def over_seeds(values: Sequence[float]) -> Interval:
    if len(values) < 2:
        return Interval(values[0] if values else np.nan, np.nan)
    found = Criterion.over_seeds("", values, 0.0)
    return Interval(found.value, found.high - found.value)


class Lineage:
    """Finished runs by task and system, in the order of the file."""

    def __init__(self, path: Path) -> None:
        self.runs: dict[str, dict[str, dict[int, Run]]] = {}
        lines = path.read_text(encoding="utf-8").splitlines()
        for run in map(json.loads, lines):
            if "error" not in run:
                by_system = self.runs.setdefault(run["task"], {})
                by_system.setdefault(run["system"], {})[run["seed"]] = run
        self.machine = json.loads(lines[0])["machine"]
        self.seeds = max(len(found) for task in self.runs.values() for found in task.values())

    @property
    def limits(self) -> list[float]:
        """Seconds of the runs."""
        tasks = (runs for by_system in self.runs.values() for runs in by_system.values())
        return sorted({run["max_seconds"] for runs in tasks for run in runs.values()})

    @property
    def tuned_on_asterix(self) -> list[str]:
        """Systems with a preset for grids: those were chosen with Asterix among others."""
        runs = (run for by in self.runs.values() for found in by.values() for run in found.values())
        grids = [run["system"] for run in runs if run["chosen"]["preset"].startswith("grids")]
        return sorted(set(grids))

    @property
    def systems(self) -> list[str]:
        """The best first: by the mean of their ranks in the tasks."""
        ranks: dict[str, list[int]] = {}
        for task in self.runs:
            order = sorted(self.runs[task], key=lambda name: -self.final(task, name).mean)
            for rank, name in enumerate(order):
                ranks.setdefault(name, []).append(rank)
        return sorted(ranks, key=lambda name: (-len(ranks[name]), sum(ranks[name])))

    def final(self, task: str, system: str) -> Interval:
        return over_seeds(list(self._scores(task, system).values()))

    def difference(self, task: str, one: str, other: str) -> Interval:
        """Of scores, seed by seed."""
        ours, theirs = self._scores(task, one), self._scores(task, other)
        return over_seeds([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def _scores(self, task: str, system: str) -> dict[int, float]:
        """By seed, where the evaluation ended within the run's time."""
        known = {n: run["evaluation_return"] for n, run in self._seeds(task, system).items()}
        return {seed: score for seed, score in known.items() if score is not None}

    def _seeds(self, task: str, system: str) -> dict[int, Run]:
        return self.runs[task].get(system, {})


def curve(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds, env steps and scores from the first finished episode on."""
    points = np.array([point for point in run["curve"] if point[2] is not None], dtype=float)
    return points[:, 0], points[:, 1], points[:, 2]


def section(path: Path = RESULTS) -> str | None:
    """The table and what follows from it; None before anything was measured."""
    if not path.exists():
        return None
    found = Lineage(path)
    lines = ["| system | " + " | ".join(map(_short, found.runs)) + " |"]
    lines.append("| --- " * (len(found.runs) + 1) + "|")
    for system in found.systems:
        cells = [_cell(found, task, system) for task in found.runs]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    tuned = ", ".join(f"`{name}`" for name in found.tuned_on_asterix)
    limits = " and ".join(f"{seconds:g}" for seconds in found.limits)
    lines += [
        "",
        f"Mean return of 20 fresh episodes, with its 95% interval over {found.seeds} seeds, by the"
        f" newest weights that could be evaluated within {limits} s of the start of a run; then the"
        " env steps that they had been trained for (median). The best mean rank comes first."
        f" Defaults on two cores of {found.machine['cpu']}, several runs at a time"
        f" (`{found.machine['command']}`). No preset was tuned on Seaquest; on Asterix"
        f" {tuned or 'none'} used one that was.",
        "",
        "The figure shows training episodes; bands span the seeds. Those of `dqn`, `gorila` and"
        " `apex` explore at random, so their curves lie below what their policies can do.",
        "",
        f"![Scores of ten systems over seconds and env steps](images/{FIGURE.name})",
        "",
        "The papers put each first system above the second. Here, after the same seconds, it is:",
        "",
        *(line for pair in PAPERS if (line := _sentence(found, *pair))),
    ]
    return "\n".join(lines)


def _short(task: str) -> str:
    return task.rpartition("/")[2].rpartition("-")[0]


def _cell(found: Lineage, task: str, system: str) -> str:
    runs = found.runs[task].get(system)
    if not runs:
        return "-"
    steps = np.median([run["evaluation_env_steps"] or run["env_steps"] for run in runs.values()])
    return f"{found.final(task, system)}; {steps / 1000:,.0f}k"


def _sentence(found: Lineage, one: str, other: str, where: str) -> str:
    """Whether the papers' order holds here: the sign of the difference, if its interval has one."""
    by_sign: dict[str, list[str]] = {"above": [], "below": [], "undecided": []}
    for task in found.runs:
        between = found.difference(task, one, other)
        if not np.isnan(between.mean):
            shown = "" if between.sign == "undecided" else f" ({between})"
            by_sign[between.sign].append(_short(task) + shown)
    told = [f"{sign} on {', '.join(names)}" for sign, names in by_sign.items() if names]
    return f"- `{one}`, `{other}` ({where}): {'; '.join(told)}." if told else ""


def draw(found: Lineage, path: Path) -> None:
    """Two rows, over seconds and over env steps; a column for each task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    shape = {"figsize": (2.4 * len(found.runs), 5.8), "squeeze": False, "layout": "constrained"}
    figure, axes = pyplot.subplots(2, len(found.runs), **shape)
    for column, (task, by_system) in enumerate(found.runs.items()):
        for row, name in enumerate(("seconds", "env steps")):
            axis = axes[row][column]
            for system, style in _STYLES.items():
                if runs := by_system.get(system):
                    _line(axis, system, style, [curve(run) for run in runs.values()], row)
            axis.set_xlabel(name)
            axis.tick_params(labelsize=9)
            if row:
                axis.set_xscale("log")
                axis.xaxis.set_minor_formatter("")
            else:
                axis.set_title(_short(task), fontsize=11)
    axes[0][0].set_ylabel("mean return of 100 episodes")
    axes[1][0].set_ylabel("mean return of 100 episodes")
    lines, names = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, frameon=False, handlelength=3)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _line(axis: Any, label: str, style: tuple[str, str], curves: list[Any], over: int) -> None:
    """Mean and range over the seeds, from where to where all of them have scores."""
    first, last = max(each[over][0] for each in curves), min(each[over][-1] for each in curves)
    space = np.geomspace if over else np.linspace
    grid = space(first, max(first, last), _GRID_POINTS)
    values = np.stack([np.interp(grid, each[over], each[2]) for each in curves], axis=-1)
    colour, dashes = style
    axis.plot(grid, values.mean(axis=-1), dashes, color=colour, linewidth=1.7, label=label)
    low, high = values.min(axis=-1), values.max(axis=-1)
    axis.fill_between(grid, low, high, color=colour, alpha=0.1, linewidth=0)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    draw(Lineage(path), FIGURE)
    print(section(path))


if __name__ == "__main__":
    main()
