# SPDX-License-Identifier: Apache-2.0
"""The run's rates, queue fills and busy shares in the labels of its topology's diagram."""

from __future__ import annotations

import re
from typing import Any

from veldt.dashboard.reading import RunView
from veldt.diagram import mermaid
from veldt.telemetry.counters import traffic_name

_EMPTY = "flowchart LR"
_NAME = re.compile(r"[\w .:+-]*")


def live_diagram(view: RunView) -> str:
    """The topology as Mermaid: items per second, filled slots, busy shares and restarts."""
    description = view.topology
    names = [*description.get("roles", ()), *description.get("channels", ())]
    # A run directory may come from elsewhere: nothing in it becomes syntax of the diagram.
    if not names or not all(map(_NAME.fullmatch, names)):
        return _EMPTY
    edges = {}
    for link in description["links"]:
        for is_writing in (True, False):
            rate = _rate(view, link, is_writing)
            if rate is not None:
                edges[link["role"], link["channel"], is_writing] = f"{compact(rate)}/s"
    filled = view.status.get("queues", {})
    queues = {
        name: f"{int(filled.get(name, 0))}/{int(entry['slots'])} filled"
        for name, entry in description["channels"].items()
        if entry["sort"] == "queue"
    }
    roles = {role: _role_note(view, role) for role in description["roles"]}
    return mermaid(description, roles, queues, edges)


def _rate(view: RunView, link: dict[str, Any], is_writing: bool) -> float | None:
    if view.topology["channels"][link["channel"]]["sort"] == "shared":
        return view.rate(link["role"], "updates") if is_writing else None
    return view.rate(link["role"], traffic_name(link["channel"], is_writing))


def _role_note(view: RunView, role: str) -> str:
    nodes = view.of_kind(role)
    busy = [node["busy"] for node in nodes if node["busy"] is not None]
    text = f"{sum(busy) / len(busy):.0%} busy" if busy else "not timed yet"
    if len(busy) > 1 and round(min(busy), 2) != round(max(busy), 2):
        text += f" ({100 * min(busy):.0f} to {max(busy):.0%})"
    restarts = sum(node["restarts"] for node in nodes)
    if restarts:
        text += f"<br>{restarts:d} restart{'s' if restarts > 1 else ''}"
    return text


def compact(value: float) -> str:
    """A rate in few characters: 0.3, 42, 1.2k, 3.4M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.5 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
