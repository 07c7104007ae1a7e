# SPDX-License-Identifier: Apache-2.0
"""The run's numbers on the picture of its topology."""

from __future__ import annotations

from html import escape

from veldt.dashboard.reading import RunView, rate_of
from veldt.diagram.grid import Link
from veldt.diagram.layout import Box
from veldt.diagram.svg import Overlay
from veldt.telemetry.counters import traffic_name


class LiveNumbers(Overlay):
    """Items per second on the lines, busy shares and restarts in the roles, fill of the queues."""

    role_height = 86

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._channels = view.topology["channels"]

    def is_idle(self, link: Link) -> bool:
        return not self._rate(link)

    def _rate(self, link: Link) -> float | None:
        if self._channels[link.channel]["sort"] == "shared":
            return rate_of(self._view, link.role, "updates") if link.writes else None
        return rate_of(self._view, link.role, traffic_name(link.channel, link.writes))

    def on_link(self, link: Link, at: tuple[float, float]) -> str:
        rate = self._rate(link)
        if rate is None:
            return ""
        title = f"{link.role} {'to' if link.writes else 'from'} {link.channel}"
        return (
            f'<text class="rate{"" if rate else " idle"}" x="{at[0]:.0f}" y="{at[1]:.0f}"'
            f' data-edge="{escape(title)}">{compact(rate)}/s</text>'
        )

    def _restarts(self, role: str) -> int:
        return sum(node["restarts"] for node in self._view.of_kind(role))

    def role_attributes(self, name: str) -> str:
        return f' data-restarts="{self._restarts(name)}"'

    def in_role(self, name: str, box: Box) -> str:
        busy = [node["busy"] for node in self._view.of_kind(name) if node["busy"] is not None]
        mean = sum(busy) / len(busy) if busy else 0.0
        words = f"{mean:.0%} busy" if busy else "no time yet"
        if len(busy) > 1 and round(min(busy), 2) != round(max(busy), 2):
            words += f" ({100 * min(busy):.0f} to {max(busy):.0%})"
        bar = _meter("busy", box.left + 14, box.top + 42, box.width - 28, 7, mean)
        detail = f'<text class="small" x="{box.left + 14}" y="{box.top + 68}">{words}</text>'
        return bar + detail + _restart_badge(box, self._restarts(name))

    def channel_words(self, name: str) -> str | None:
        if self._channels[name]["sort"] != "queue":
            return None
        return f"{self._filled(name)}/{self._channels[name]['slots']} filled"

    def _filled(self, queue: str) -> int:
        return self._view.status.get("queues", {}).get(queue, 0)

    def in_channel(self, name: str, box: Box) -> str:
        if self._channels[name]["sort"] != "queue":
            return ""
        share = min(1.0, self._filled(name) / self._channels[name]["slots"])
        return _meter("fill", box.left + 24, box.top + 39, box.width - 48, 3, share)


def _meter(sort: str, x: float, y: float, width: float, height: float, share: float) -> str:
    place = f'x="{x}" y="{y}" height="{height}" rx="{height / 2}"'
    return (
        f'<rect class="track" {place} width="{width}"/>'
        f'<rect class="{sort}" {place} width="{width * share:.1f}"/>'
    )


def _restart_badge(box: Box, restarts: int) -> str:
    if not restarts:
        return ""
    words = f"{restarts} restart{'s' if restarts > 1 else ''}"
    width = 8 + 6.4 * len(words)
    return (
        f'<rect class="badge" x="{box.right - width - 8:.0f}" y="{box.top - 9}"'
        f' width="{width:.0f}" height="18" rx="9"/><text class="badge-text"'
        f' x="{box.right - 8 - width / 2:.0f}" y="{box.top + 4}">{words}</text>'
    )


def compact(value: float) -> str:
    """A rate in few characters: 0.3, 42, 1.2k, 3.4M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.5 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
