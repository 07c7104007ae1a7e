# SPDX-License-Identifier: Apache-2.0
"""ECharts options of the page's charts, and the topology's diagram with live numbers."""

from __future__ import annotations

import re
from typing import Any

from veldt.dashboard.reading import RunView
from veldt.diagram import mermaid
from veldt.environments.vector import RETURN_OF
from veldt.telemetry.counters import traffic_name
from veldt.telemetry.log_files import EVALUATION, EVALUATION_ENV_STEPS

Options = dict[str, Any]
_LINE, _BARS = "#2f9e6e", "#d98a3d"
_LABEL = {"color": "#8a94a0", "fontSize": 11}
_SPLIT = {"lineStyle": {"color": "rgba(138,148,160,0.18)"}}
_TASK = f"info/{RETURN_OF}"
_NAME = re.compile(r"[\w .:+-]*")


def curve(view: RunView) -> Options:
    """Mean return of the last 100 episodes over env steps, of all and of each task, and target."""
    points = _points(view.curve, "env_steps", "return/mean_100")
    drawn: Options = {
        "type": "line",
        "name": "mean return",
        "data": points,
        "showSymbol": len(points) == 1,
        "color": _LINE,
        "areaStyle": {"opacity": 0.10},
    }
    target = view.option("target_return")
    if target is not None:
        drawn["markLine"] = {
            "symbol": "none",
            "data": [{"yAxis": target}],
            "label": {"formatter": f"target {target:g}", "position": "insideStartTop", **_LABEL},
            "lineStyle": {"color": _BARS, "type": "dashed"},
        }
    options = _chart(drawn, "env steps")
    options["yAxis"]["scale"] = True
    for name in view.curve[-1] if view.curve else ():
        if name.startswith(_TASK):
            seen = _points(view.curve, "env_steps", name)
            line = {"type": "line", "name": name.removeprefix(_TASK), "data": seen}
            options["series"].append({**line, "showSymbol": False})
    evaluated = _points(view.evaluations, EVALUATION_ENV_STEPS, EVALUATION)
    if evaluated:
        drawn = {"type": "line", "name": "evaluation", "data": evaluated, "color": _BARS}
        options["series"].append(drawn)
    return options


def _points(lines: list[dict[str, Any]], x: str, y: str) -> list[list[float]]:
    return [
        [line[x], float(f"{value:.5g}")]
        for line in lines
        if isinstance(value := line.get(y), float) and isinstance(line.get(x), int)
    ]


def lag(view: RunView) -> Options:
    """Share of rows by policy lag; the last bin of the histogram, 127, is "or more"."""
    histogram = view.status.get("policy_lag", {}).get("histogram") or []
    total = sum(histogram) or 1
    bars = {
        "type": "bar",
        "name": "share of rows",
        "data": [round(100 * count / total, 2) for count in histogram],
        "color": _BARS,
    }
    options = _chart(bars, "updates")
    options["xAxis"]["type"] = "category"
    options["yAxis"]["axisLabel"] = {**_LABEL, "formatter": "{value}%"}
    return options


def _chart(series: Options, x_name: str) -> Options:
    return {
        "animation": False,
        "grid": {"left": 10, "right": 30, "top": 14, "bottom": 28, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "value",
            "name": x_name,
            "axisLabel": {**_LABEL, "hideOverlap": True},
            "splitLine": {"show": False},
            "nameTextStyle": _LABEL,
            "nameLocation": "middle",
            "nameGap": 26,
        },
        "yAxis": {"type": "value", "axisLabel": _LABEL, "splitLine": _SPLIT},
        "series": [series],
    }


def live_diagram(view: RunView) -> str:
    """The topology as Mermaid: items per second, filled slots, busy shares and restarts."""
    description, edges = view.topology, {}
    channels, links = description.get("channels", {}), description.get("links", ())
    names = [*description.get("roles", ()), *channels, *(str(link["role"]) for link in links)]
    # A run directory may come from a stranger: its names must not become syntax of the diagram.
    if not names or not all(map(_NAME.fullmatch, names)):
        return "flowchart LR"
    for link in links:
        role, channel = link["role"], link["channel"]
        rates = view.status.get("rates", {}).get(role, {})
        counted = {is_writing: traffic_name(channel, is_writing) for is_writing in (True, False)}
        if channels[channel]["sort"] == "shared":
            counted = {True: "updates"}
        for is_writing, counter in counted.items():
            if counter in rates:
                edges[role, channel, is_writing] = f"{compact(rates[counter])}/s"
    filled = view.status.get("queues", {})
    queues = {
        name: f"{int(filled.get(name, 0))}/{int(entry['slots'])} filled"
        for name, entry in channels.items()
        if entry["sort"] == "queue"
    }
    roles = {role: _role_note(view, role) for role in description["roles"]}
    return mermaid(description, roles, queues, edges)


def _role_note(view: RunView, role: str) -> str:
    nodes = view.nodes_of(role)
    busy = [node["busy"] for node in nodes if node["busy"] is not None]
    text = f"{sum(busy) / len(busy):.0%} busy" if busy else "not timed yet"
    restarts = sum(node["restarts"] for node in nodes)
    return f"{text}<br>restarts: {restarts:d}" if restarts else text


def compact(value: float) -> str:
    """A rate in few characters: 0.3, 42, 1.2k, 3.4M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.5 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
