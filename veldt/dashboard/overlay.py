# SPDX-License-Identifier: Apache-2.0
"""The run's numbers in the labels of its topology's diagram."""

from __future__ import annotations

from typing import Any

from veldt.dashboard.reading import RunView, rate_of
from veldt.diagram import mermaid
from veldt.telemetry.counters import traffic_name


def live_diagram(view: RunView) -> str:
    """The topology as Mermaid: items per second, filled slots, busy shares and restarts."""
    description = view.topology
    edges = {}
    for link in description["links"]:
        for is_writing in (True, False):
            rate = _rate(view, link, is_writing)
            if rate is not None:
                edges[link["role"], link["channel"], is_writing] = f"{compact(rate)}/s"
    return mermaid(
        description,
        {role: _role_note(view, role) for role in description["roles"]},
        {
            name: f"{view.status.get('queues', {}).get(name, 0)}/{entry['slots']} filled"
            for name, entry in description["channels"].items()
            if entry["sort"] == "queue"
        },
        edges,
    )


def _rate(view: RunView, link: dict[str, Any], is_writing: bool) -> float | None:
    if view.topology["channels"][link["channel"]]["sort"] == "shared":
        return rate_of(view, link["role"], "updates") if is_writing else None
    return rate_of(view, link["role"], traffic_name(link["channel"], is_writing))


def _role_note(view: RunView, role: str) -> str:
    nodes = view.of_kind(role)
    busy = [node["busy"] for node in nodes if node["busy"] is not None]
    words = f"{sum(busy) / len(busy):.0%} busy" if busy else "no time yet"
    if len(busy) > 1 and round(min(busy), 2) != round(max(busy), 2):
        words += f" ({100 * min(busy):.0f} to {max(busy):.0%})"
    restarts = sum(node["restarts"] for node in nodes)
    if restarts:
        words += f"<br>{restarts} restart{'s' if restarts > 1 else ''}"
    return words


def compact(value: float) -> str:
    """A rate in few characters: 0.3, 42, 1.2k, 3.4M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.5 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
