# SPDX-License-Identifier: Apache-2.0
"""What a report shows of leagues: strength and Elo over env steps, payoff, family tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from veldt.compare.records import Record, Records
from veldt.telemetry.record import LEAGUE_FOLDER, LEAGUE_LOG

_PREFIX = "counter/league."
_MEASURES = ("nash_conv.", "distance.", "minimax.")
_MOST_NAMES = 40
Drawn = tuple[Figure, str, str, str] | None


def league_figures(records: Records) -> list[Drawn]:
    """All figures of the leagues among these runs."""
    leagues = [run for runs in records.values() for run in runs if run.result.league]
    if not leagues:
        return []
    return [_strength(leagues), _elo(leagues), _payoff(leagues[0]), _family(leagues[0])]


def _strength(leagues: list[Record]) -> Drawn:
    names = [name for name in _counters(leagues[0]) if name.startswith(_MEASURES)]
    if not names:
        return None
    figure, axis = _axis()
    for run in leagues:
        for number, name in enumerate(names):
            steps, values = _counted(run, name)
            axis.plot(steps, values, color=f"C{number}", label=name if run is leagues[0] else None)
    axis.set_xlabel("environment steps")
    axis.set_ylim(bottom=0.0)
    axis.legend(fontsize="small")
    caption = "Exact, by the game's own measure; one line for each seed."
    return figure, "league_strength", "League: strength of the main player", caption


def _elo(leagues: list[Record]) -> Drawn:
    figure, axis = _axis()
    for run in leagues:
        for name in _counters(run):
            if name.startswith("elo."):
                steps, values = _counted(run, name)
                label = f"learning player {name[4:]}" if run is leagues[0] else None
                axis.plot(steps, values, color=f"C{name[4:]}", label=label)
    if not axis.lines:
        return None
    axis.set_xlabel("environment steps")
    axis.set_ylabel("Elo")
    axis.legend(fontsize="small")
    caption = "A rating for people to look at; nothing is steered by it. One line for each seed."
    return figure, "league_elo", "League: Elo of the learning players", caption


def _payoff(run: Record) -> Drawn:
    league = run.result.league or {}
    rates, kinds = league["win_rates"], league["kinds"]
    figure, axis = _axis(6.0, 5.2)
    image = axis.imshow(rates, vmin=0.0, vmax=1.0, cmap="RdYlGn")
    if len(kinds) <= _MOST_NAMES:
        names = [f"{number} {kind}" for number, kind in enumerate(kinds)]
        axis.set_yticks(range(len(names)), names, fontsize=6)
    axis.set_xlabel("player")
    figure.colorbar(image, ax=axis, label="win rate of row against column")
    caption = f"Seed {run.result.seed}, at its end; half a win for a draw, 0.5 before any game."
    return figure, "league_payoff", "League: payoff of all pairs", caption


def _family(run: Record) -> Drawn:
    entries = _freezings(run.task.run_dir)
    if not entries:
        return None
    figure, axis = _axis(8.0, 2.6)
    kinds = {entry["parent"]: entry["kind"] for entry in entries}
    lanes = {player: number for number, player in enumerate(sorted(kinds))}
    for player, lane in lanes.items():
        began = 0
        for entry in (entry for entry in entries if entry["parent"] == player):
            now = entry["env_steps"]
            axis.plot([began, now], [lane, lane], color=f"C{lane}", linewidth=1)
            axis.plot(now, lane, "o", color=f"C{lane}", markersize=4)
            if entry["reset"]:
                axis.plot(now, lane, "|", color="black", markersize=14)
            began = now
    names = [f"{player} {kinds[player]}" for player in lanes]
    axis.set_yticks(list(lanes.values()), names, fontsize=8)
    axis.set_ylim(len(lanes) - 0.5, -0.5)
    axis.set_xlabel("environment steps of all players")
    caption = (
        f"Seed {run.result.seed}: a point for each frozen model, on the line of the player it was"
        " frozen from; a bar where that player began anew."
    )
    return figure, "league_family", "League: family tree of the pool", caption


def _axis(width: float = 8.0, height: float = 4.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    return figure, figure.add_subplot()


def _counters(run: Record) -> list[str]:
    found = {key for row in run.rows for key in row if key.startswith(_PREFIX)}
    return sorted(key.removeprefix(_PREFIX) for key in found)


def _counted(run: Record, name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in run.rows if row.get(_PREFIX + name) is not None]
    return [row["env_steps"] for row in rows], [row[_PREFIX + name] for row in rows]


def _freezings(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / LEAGUE_FOLDER / LEAGUE_LOG
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
