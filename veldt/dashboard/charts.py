# SPDX-License-Identifier: Apache-2.0
"""ECharts options of the page's charts: returns, speed, policy lag, and those of a league."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from veldt.dashboard.reading import RunView
from veldt.telemetry.counters import LAG_BINS

Options = dict[str, Any]
COLOURS = ("#2f9e6e", "#4c7fd1", "#d98a3d", "#a65fc0", "#c8473b", "#3aa6b9", "#8a6d3b", "#7a8791")
_LABEL = {"color": "#8a94a0", "fontSize": 11}
_SPLIT = {"lineStyle": {"color": "rgba(138,148,160,0.18)"}}
_LEGEND = {"top": 0, "type": "scroll", "textStyle": _LABEL, "itemHeight": 8, "itemWidth": 14}
_LOSS, _DRAW, _WIN = "#c4553d", "#e9e4d8", "#2f9e6e"
_MOST_BARS = 40


def curve(view: RunView) -> Options:
    """Mean return of the last 100 episodes over env steps, with the target if there is one."""
    points = [[p.env_steps, _short(p.mean_return)] for p in view.curve if p.mean_return is not None]
    drawn = _line("mean return", points, COLOURS[0], area=True)
    target = view.option("target_return")
    if target is not None:
        drawn["markLine"] = {
            "symbol": "none",
            "data": [{"yAxis": target}],
            "label": {"formatter": f"target {target:g}", "position": "insideStartTop", **_LABEL},
            "lineStyle": {"color": COLOURS[2], "type": "dashed"},
        }
    return _chart([drawn], "env steps", scale=True)


def speed(view: RunView) -> Options:
    """Env steps per second over seconds since the first point."""
    start = view.curve[0].time if view.curve else 0.0
    points = [[round(p.time - start, 1), round(p.env_steps_per_second)] for p in view.curve]
    return _chart([_line("env steps/s", points, COLOURS[1], area=True)], "seconds")


def lag(view: RunView) -> Options:
    """Share of rows by policy lag."""
    histogram = view.status.get("policy_lag", {}).get("histogram") or []
    total = sum(histogram) or 1
    width = max(1, -(-len(histogram) // _MOST_BARS))
    starts = range(0, len(histogram), width)
    bars = {
        "type": "bar",
        "name": "share of rows",
        "data": [round(100 * sum(histogram[s : s + width]) / total, 2) for s in starts],
        "itemStyle": {"color": COLOURS[2]},
    }
    options = _chart([bars], "updates")
    options["xAxis"] |= {"type": "category", "data": [_lag_name(s, width) for s in starts]}
    options["yAxis"]["axisLabel"] = {**_LABEL, "formatter": "{value}%"}
    return options


def _lag_name(start: int, width: int) -> str:
    last = start + width - 1
    if last >= LAG_BINS - 1:
        return f"{start}+"
    return str(start) if width == 1 else f"{start}-{last}"


Pairs = list[list[float]]


def returns_over_steps(view: RunView) -> Pairs:
    return [[p.env_steps, _short(p.mean_return)] for p in view.curve if p.mean_return is not None]


def returns_over_time(view: RunView) -> Pairs:
    start = view.curve[0].time if view.curve else 0.0
    return [
        [round(p.time - start, 1), _short(p.mean_return)]
        for p in view.curve
        if p.mean_return is not None
    ]


def speed_over_steps(view: RunView) -> Pairs:
    return [[p.env_steps, round(p.env_steps_per_second)] for p in view.curve]


OVERVIEW: dict[str, tuple[Callable[[RunView], Pairs], str]] = {
    "Return over env steps": (returns_over_steps, "env steps"),
    "Return over time": (returns_over_time, "seconds"),
    "Env steps per second": (speed_over_steps, "env steps"),
}
"""Charts with one line per run: their points and the name of their x axis."""


def overview(title: str, views: Iterable[tuple[str, RunView]]) -> Options:
    points_of, x_name = OVERVIEW[title]
    lines = [
        _line(name, points_of(view), COLOURS[place % len(COLOURS)])
        for place, (name, view) in enumerate(views)
    ]
    options = _chart(lines, x_name, scale=True)
    options["grid"] |= {"top": 30}
    return {**options, "legend": _LEGEND}


def payoff(view: RunView) -> Options:
    """Win rates of a league's players, rows against columns, as a heat map."""
    rates = view.snapshots[-1]["win_rates"] if view.snapshots else []
    cells = [
        [column, row, rates[row][column]]
        for row in range(len(rates))
        for column in range(len(rates))
        if row != column
    ]
    axis = {"type": "category", "data": player_names(view), "axisLabel": _LABEL}
    return {
        "animation": False,
        "grid": {"left": 10, "right": 60, "top": 14, "bottom": 10, "containLabel": True},
        "tooltip": {"confine": True},
        "xAxis": {**axis, "axisLabel": {**_LABEL, "rotate": 60}},
        "yAxis": {**axis, "inverse": True},
        "visualMap": {
            "min": 0,
            "max": 1,
            "right": 0,
            "top": "middle",
            "itemHeight": 90,
            "inRange": {"color": [_LOSS, _DRAW, _WIN]},
            "textStyle": _LABEL,
        },
        "series": [{"type": "heatmap", "name": "win rate", "data": cells}],
    }


def family(view: RunView) -> Options:
    """Family tree of a league: a line per learning player, a point per frozen model; a player that
    was reset begins a new line."""
    learning = _learning_players(view)
    lanes = {player: number for number, player in enumerate(learning)}
    series = []
    for player, name in learning.items():
        points: list[list[Any]] = [[0, lanes[player]]]
        for entry in view.snapshots:
            if entry["parent"] != player:
                continue
            points.append([entry["env_steps"], lanes[player], f"model {entry['model']}"])
            if entry["reset"]:
                points += [[None, None], [entry["env_steps"], lanes[player]]]
        drawn = _line(name, points, COLOURS[lanes[player] % len(COLOURS)])
        series.append({**drawn, "showSymbol": True, "symbolSize": 7})
    options = _chart(series, "env steps")
    options["yAxis"] |= {
        "type": "category",
        "data": list(learning.values()),
        "inverse": True,
        "boundaryGap": True,
    }
    options["tooltip"] = {"trigger": "item", "confine": True}
    return options


def player_names(view: RunView) -> list[str]:
    """Names of all players of the newest snapshot: learning ones by kind, frozen ones by model."""
    if not view.snapshots:
        return []
    frozen = {entry["player"]: f"model {entry['model']}" for entry in view.snapshots}
    learning = _learning_players(view)
    return [
        frozen.get(player, learning.get(player, f"player {player}"))
        for player in range(len(view.snapshots[-1]["elo"]))
    ]


def _learning_players(view: RunView) -> dict[int, str]:
    """Names of the main player and of those with at least one frozen model."""
    kinds = {entry["parent"]: entry["kind"].replace("_", " ") for entry in view.snapshots}
    kinds.setdefault(0, "main")
    repeated = [kind for kind in kinds.values() if list(kinds.values()).count(kind) > 1]
    return {
        player: f"{kind} {player}" if kind in repeated else kind
        for player, kind in sorted(kinds.items())
    }


def _line(name: str, points: list[list[Any]], colour: str, area: bool = False) -> Options:
    drawn: Options = {
        "type": "line",
        "name": name,
        "data": points,
        "showSymbol": len(points) == 1,
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
    }
    return drawn | ({"areaStyle": {"color": colour, "opacity": 0.10}} if area else {})


def _chart(series: list[Options], x_name: str, scale: bool = False) -> Options:
    name_style = {"nameTextStyle": _LABEL, "nameLocation": "middle", "nameGap": 26}
    return {
        "animation": False,
        "grid": {"left": 10, "right": 30, "top": 14, "bottom": 28, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "value",
            "name": x_name,
            "axisLabel": {**_LABEL, "hideOverlap": True},
            "axisLine": {"lineStyle": {"color": "rgba(138,148,160,0.5)"}},
            "splitLine": {"show": False},
            **name_style,
        },
        "yAxis": {"type": "value", "scale": scale, "axisLabel": _LABEL, "splitLine": _SPLIT},
        "series": series,
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
