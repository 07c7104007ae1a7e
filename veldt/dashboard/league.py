# SPDX-License-Identifier: Apache-2.0
"""What the page shows of a league: payoff, family tree, ratings and strength, in the words of
ECharts."""

from __future__ import annotations

from typing import Any

from veldt.dashboard.charts import LABEL, Options, chart, line
from veldt.dashboard.reading import RunView

_COLOURS = ("#2f9e6e", "#d98a3d", "#4c7fd1", "#a65fc0")
_BAD, _EVEN, _GOOD = "#c4553d", "#e9e4d8", "#2f9e6e"
_LEGEND = {"top": 0, "textStyle": LABEL, "itemHeight": 8}


def has_league(view: RunView) -> bool:
    return view.config["architecture"] == "league"


def names(view: RunView) -> list[str]:
    """Of all players of the newest freezing: learning ones by kind, frozen ones by model."""
    if not view.freezings:
        return []
    newest = view.freezings[-1]
    told = {entry["player"]: f"model {entry['model']}" for entry in view.freezings}
    learning = _learning(view)
    return [
        told.get(player, learning.get(player, f"player {player}"))
        for player in range(len(newest["elo"]))
    ]


def payoff(view: RunView) -> Options:
    """Win rates of rows against columns as a heat map."""
    rates = view.freezings[-1]["win_rates"] if view.freezings else []
    players = names(view)
    cells = [
        [column, row, rates[row][column]]
        for row in range(len(rates))
        for column in range(len(rates))
        if row != column
    ]
    axis = {"type": "category", "data": players, "axisLabel": LABEL}
    return {
        "animation": False,
        "grid": {"left": 10, "right": 60, "top": 14, "bottom": 10, "containLabel": True},
        "tooltip": {"confine": True},
        "xAxis": {**axis, "axisLabel": {**LABEL, "rotate": 60}},
        "yAxis": {**axis, "inverse": True},
        "visualMap": {
            "min": 0,
            "max": 1,
            "right": 0,
            "top": "middle",
            "itemHeight": 90,
            "inRange": {"color": [_BAD, _EVEN, _GOOD]},
            "textStyle": LABEL,
        },
        "series": [{"type": "heatmap", "name": "win rate", "data": cells}],
    }


def family(view: RunView) -> Options:
    """Who was frozen from whom: a line for each life of a learning player, a point for each model.
    A player that begins anew begins a new line."""
    learning = _learning(view)
    lanes = {player: number for number, player in enumerate(learning)}
    series = []
    for player, name in learning.items():
        points: list[list[Any]] = [[0, lanes[player]]]
        for entry in view.freezings:
            if entry["parent"] != player:
                continue
            points.append([entry["env_steps"], lanes[player], f"model {entry['model']}"])
            if entry["reset"]:
                points += [[None, None], [entry["env_steps"], lanes[player]]]
        drawn = line(name, points, _COLOURS[lanes[player] % len(_COLOURS)])
        series.append({**drawn, "showSymbol": True, "symbolSize": 7})
    options = chart(series, x_name="env steps")
    options["yAxis"] |= {
        "type": "category",
        "data": list(learning.values()),
        "inverse": True,
        "boundaryGap": True,
    }
    options["tooltip"] = {"trigger": "item", "confine": True}
    return options


def ratings(view: RunView) -> Options:
    """Elo of the learning players over env steps."""
    series = []
    for number, (player, name) in enumerate(_learning(view).items()):
        points = [[e["env_steps"], e["elo"][player]] for e in view.freezings]
        series.append(line(name, points, _COLOURS[number % len(_COLOURS)]))
    return {**chart(series, x_name="env steps", scale=True), "legend": _LEGEND}


def strength(view: RunView) -> Options:
    """Every measure of the game over env steps: NashConv, lost lines, wins, or distances."""
    measured = [key for key in (view.measures[-1] if view.measures else {}) if "." in key]
    series = [
        line(key, [[e["env_steps"], round(e[key], 4)] for e in view.measures if key in e], colour)
        for key, colour in zip(measured, _COLOURS, strict=False)
    ]
    return {**chart(series, x_name="env steps"), "legend": _LEGEND}


def _learning(view: RunView) -> dict[int, str]:
    """Names of the learning players that have been frozen at least once; the main one always."""
    kinds = {entry["parent"]: entry["kind"].replace("_", " ") for entry in view.freezings}
    kinds.setdefault(0, "main")
    twice = [kind for kind in kinds.values() if list(kinds.values()).count(kind) > 1]
    return {
        player: f"{kind} {player}" if kind in twice else kind
        for player, kind in sorted(kinds.items())
    }
