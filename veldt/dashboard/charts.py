# SPDX-License-Identifier: Apache-2.0
"""Options of the page's charts, in the words of ECharts: learning curve, speed and policy lag."""

from __future__ import annotations

from typing import Any

from veldt.dashboard.reading import RunView
from veldt.telemetry.counters import LAG_BINS

Options = dict[str, Any]

_ACCENT, _SECOND, _WARM = "#2f9e6e", "#4c7fd1", "#d98a3d"
LABEL = {"color": "#8a94a0", "fontSize": 11}
_SPLIT = {"lineStyle": {"color": "rgba(138,148,160,0.18)"}}
_MOST_BARS = 40


def curve(view: RunView) -> Options:
    """Mean return of the last 100 episodes over env steps, with the target if there is one."""
    points = [[p.env_steps, _short(p.mean_return)] for p in view.curve if p.mean_return is not None]
    drawn = line("mean return", points, _ACCENT, area=True)
    target = view.option("target_return")
    if target is not None:
        drawn["markLine"] = {
            "symbol": "none",
            "data": [{"yAxis": target}],
            "label": {"formatter": f"target {target:g}", "position": "insideStartTop", **LABEL},
            "lineStyle": {"color": _WARM, "type": "dashed"},
        }
    return chart(drawn, x_name="env steps", scale=True)


def speed(view: RunView) -> Options:
    """Env steps per second over the seconds since the first point."""
    start = view.curve[0].time if view.curve else 0.0
    points = [[round(p.time - start, 1), round(p.env_steps_per_second)] for p in view.curve]
    return chart(line("env steps/s", points, _SECOND, area=True), x_name="seconds")


def lag(view: RunView) -> Options:
    """How many updates old the weights were that rows were acted with; share of rows."""
    histogram = view.status.get("policy_lag", {}).get("histogram") or []
    total = sum(histogram) or 1
    width = max(1, -(-len(histogram) // _MOST_BARS))
    starts = range(0, len(histogram), width)
    names = [_lag_name(start, width) for start in starts]
    shares = [round(100 * sum(histogram[s : s + width]) / total, 2) for s in starts]
    bars = {
        "type": "bar",
        "name": "share of rows",
        "data": shares,
        "barCategoryGap": "12%",
        "itemStyle": {"color": _WARM, "borderRadius": [3, 3, 0, 0]},
    }
    options = chart(bars, x_name="updates")
    options["xAxis"] |= {"type": "category", "data": names}
    options["yAxis"]["axisLabel"] = {**LABEL, "formatter": "{value}%"}
    return options


def _lag_name(start: int, width: int) -> str:
    last = start + width - 1
    if last >= LAG_BINS - 1:
        return f"{start}+"
    return str(start) if width == 1 else f"{start}-{last}"


def line(name: str, points: list[list[Any]], colour: str, area: bool = False) -> Options:
    drawn: Options = {
        "type": "line",
        "name": name,
        "data": points,
        "showSymbol": len(points) == 1,
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
    }
    return drawn | ({"areaStyle": {"color": colour, "opacity": 0.10}} if area else {})


def chart(series: Options | list[Options], x_name: str, scale: bool = False) -> Options:
    name_style = {"nameTextStyle": LABEL, "nameLocation": "middle", "nameGap": 26}
    return {
        "animation": False,
        "grid": {"left": 10, "right": 30, "top": 14, "bottom": 28, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "value",
            "name": x_name,
            "axisLabel": {**LABEL, "hideOverlap": True},
            "axisLine": {"lineStyle": {"color": "rgba(138,148,160,0.5)"}},
            "splitLine": {"show": False},
            **name_style,
        },
        "yAxis": {"type": "value", "scale": scale, "axisLabel": LABEL, "splitLine": _SPLIT},
        "series": series if isinstance(series, list) else [series],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
