# SPDX-License-Identifier: Apache-2.0
"""Pictures of benchmarks/results/league.json and league_arms.json, into docs/images.

python benchmarks/league_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measuring
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_IMAGES = measuring.ROOT / "docs" / "images"
_GAMES = (
    ("leduc", ("nash_conv.last", "nash_conv.mixture"), 0.8, "Leduc: NashConv"),
    ("kuhn", ("nash_conv.last", "nash_conv.mixture"), 0.05, "Kuhn: NashConv"),
    (
        "rock_paper_scissors_latest",
        ("distance.last",),
        None,
        "Rock-paper-scissors, latest: distance to a third",
    ),
    (
        "rock_paper_scissors_league",
        ("distance.last", "distance.mixture"),
        0.05,
        "Rock-paper-scissors, pfsp: distance to a third",
    ),
    (
        "tic_tac_toe",
        ("minimax.losses_first", "minimax.losses_second"),
        None,
        "Tic-tac-toe: lost lines by seat",
    ),
    ("connect_four", ("alpha_beta.win_rate",), 0.9, "Connect Four: wins against depth 4"),
)
_LOGARITHMIC = ("leduc", "kuhn")


def draw_games(entries: list[dict[str, Any]], path: Path) -> None:
    """One panel for each game, one line for each seed and measure; dashed: what is asked for."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for axis, (game, measures, target, title) in zip(axes, _GAMES, strict=True):
        own = [entry for entry in entries if entry["name"] == game]
        for entry in own:
            for number, measure in enumerate(measures):
                label = measure if entry is own[0] else None
                _line(axis, entry["curve"], measure, f"C{number}", label)
        if target is not None:
            axis.axhline(target, color="0.4", linestyle="--", linewidth=1)
        if game in _LOGARITHMIC:
            axis.set_yscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("env steps", fontsize=8)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def draw_arms(payload: dict[str, Any], path: Path) -> None:
    """Curves of every arm at its best entropy, and where its seeds ended."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    curves, ends = figure.subplots(1, 2)
    arms = payload["verdicts"]["arms"]
    for number, (arm, found) in enumerate(arms.items()):
        best, color = found["best"], f"C{number}"
        name = f"{arm}@{best['final_entropy']:g}"
        own = [entry for entry in payload["entries"] if entry["name"] == name]
        for entry in own:
            label = f"{arm}, entropy {best['final_entropy']:g}" if entry is own[0] else None
            _line(curves, entry["curve"], best["measure"], color, label)
        ends.plot([number] * len(best["values"]), best["values"], "o", color=color, alpha=0.5)
        low, high = best["interval"]
        ends.vlines(number, low, high, color=color)
        ends.plot([number], [best["interquartile_mean"]], "_", color=color, markersize=16)
    curves.set_yscale("log")
    curves.set_xlabel("env steps")
    curves.set_ylabel("NashConv on Leduc")
    curves.legend(fontsize=7)
    ends.set_xticks(range(len(arms)), list(arms), fontsize=8)
    ends.set_ylabel("at the end: seeds, interquartile mean, 95%")
    figure.savefig(path, dpi=110)


def _line(
    axis: Axes, curve: list[dict[str, float]], measure: str, color: str, label: str | None
) -> None:
    steps = [row["env_steps"] for row in curve]
    axis.plot(steps, [row[measure] for row in curve], color=color, linewidth=1, label=label)


def main() -> None:
    _IMAGES.mkdir(exist_ok=True)
    games = json.loads((measuring.RESULTS / "league.json").read_text(encoding="utf-8"))
    draw_games(games["entries"], _IMAGES / "league.png")
    arms = measuring.RESULTS / "league_arms.json"
    if arms.exists():
        draw_arms(json.loads(arms.read_text(encoding="utf-8")), _IMAGES / "league_arms.png")


if __name__ == "__main__":
    main()
