# SPDX-License-Identifier: Apache-2.0
"""The architecture as an SVG with the run's numbers on it. Colours come from the page's style, so
that one drawing serves light and dark. Nothing moves by itself: repainting costs cores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from html import escape

from veldt.dashboard.placing import Grid, Link, Place, place
from veldt.dashboard.reading import RunView, rate_of
from veldt.telemetry.counters import traffic_name

_ROLE_WIDTH, _ROLE_HEIGHT = 176, 86
_CHANNEL_WIDTH, _CHANNEL_HEIGHT = 148, 46
_GAP, _ROW_GAP, _LANE_GAP, _MARGIN = 64, 30, 62, 16
_ATTACH_SPACING, _GUTTER = 54, 20
_TIMES = "&#215;"


@dataclass(frozen=True)
class _Box:
    """A place in pixels, by its middle."""

    x: float
    y: float
    width: float
    height: float

    def side(self, towards: float) -> float:
        """The x of the side that faces `towards`."""
        return self.x + (self.width if towards > self.x else -self.width) / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


class Drawing:
    """Placed once per topology, filled in at every look."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._grid: Grid = place(view.topology)
        self._roles = {name: self._box(there) for name, there in self._grid.roles.items()}
        self._channels = {name: self._box(there) for name, there in self._grid.channels.items()}
        self._lane_ports = self._attach()

    def svg(self, view: RunView) -> str:
        self._view = view
        width = _MARGIN + max(box.x + box.width / 2 for box in self.boxes)
        height = _MARGIN + max(box.bottom for box in self.boxes)
        lines = "".join(self._line(link) for link in self._grid.links)
        shapes = "".join(self._role(there) for there in self._grid.roles.values())
        shapes += "".join(self._channel(there) for there in self._grid.channels.values())
        labels = "".join(self._label(link) for link in self._grid.links)
        marker = (
            '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto-start-reverse"><path d="M0 0.5 7.5 4 0 7.5z" class="{0}"/></marker>'
        )
        return (
            f'<svg class="topology" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
            f' style="max-width:{1.15 * width:.0f}px"'
            f' aria-label="{escape(view.topology["architecture"])}: who talks to whom">'
            f"<defs>{marker.format('tip')}{marker.format('tip-idle')}</defs>"
            f"{lines}{shapes}{labels}</svg>"
        )

    @property
    def boxes(self) -> list[_Box]:
        return [*self._roles.values(), *self._channels.values()]

    def _box(self, there: Place) -> _Box:
        # Roles stand in even columns, channels in odd ones.
        pitch = _ROLE_WIDTH + _CHANNEL_WIDTH + 2 * _GAP
        x = _MARGIN + _ROLE_WIDTH / 2 + there.column * pitch / 2
        y = _MARGIN + _ROLE_HEIGHT / 2 + there.row * (_ROLE_HEIGHT + _ROW_GAP)
        if there.lane is not None:
            y += (_LANE_GAP - _ROLE_HEIGHT) / 2 + there.lane * _LANE_GAP
        size = (_ROLE_WIDTH, _ROLE_HEIGHT) if there.is_role else (_CHANNEL_WIDTH, _CHANNEL_HEIGHT)
        return _Box(x, y, *size)

    def _attach(self) -> dict[Link, float]:
        """Where on the underside of its role each lane begins: the x of its upright."""
        by_role: dict[str, list[Link]] = defaultdict(list)
        for link in self._grid.links:
            if self._grid.channels[link.channel].lane is not None:
                by_role[link.role].append(link)
        ports = {}
        for role, links in by_role.items():
            box = self._roles[role]
            links.sort(key=lambda link: self._order_below(box, self._channels[link.channel]))
            for number, link in enumerate(links):
                if self._has_room_below(role):
                    ports[link] = box.x + (number - (len(links) - 1) / 2) * _ATTACH_SPACING
                else:
                    ports[link] = box.x + box.width / 2 + _GUTTER + 8 * number
        return ports

    @staticmethod
    def _order_below(role: _Box, channel: _Box) -> tuple[bool, float]:
        """From left to right, so that the uprights do not cross the lanes: deep ones outside."""
        is_right = channel.x > role.x
        return is_right, -channel.y if is_right else channel.y

    def _has_room_below(self, role: str) -> bool:
        own, others = self._grid.roles[role], self._grid.roles.values()
        return not any(p.column == own.column and p.row > own.row for p in others)

    def _line(self, link: Link) -> str:
        idle = "" if self._rate(link) else " idle"
        tip = "tip-idle" if idle else "tip"
        asks = self._grid.channels[link.channel].sort in ("requests", "stream")
        # The path runs from the role to the channel.
        ends = f' marker-end="url(#{tip})"' if link.writes or asks else ""
        ends += f' marker-start="url(#{tip})"' if link.reads or asks else ""
        return f'<path class="link{idle}" d="{self._path(link)}"{ends}/>'

    def _path(self, link: Link) -> str:
        role, channel = self._roles[link.role], self._channels[link.channel]
        if link not in self._lane_ports:
            x1, x2 = role.side(channel.x), channel.side(role.x)
            bend = (x2 - x1) / 2
            return (
                f"M{x1:.0f} {role.y:.0f}C{x1 + bend:.0f} {role.y:.0f} {x2 - bend:.0f}"
                f" {channel.y:.0f} {x2:.0f} {channel.y:.0f}"
            )
        port = self._lane_ports[link]
        side = channel.side(port)
        turn = 10 if port < channel.x else -10
        start = f"M{port:.0f} {role.bottom:.0f}"
        if not self._has_room_below(link.role):
            start = f"M{role.x + role.width / 2:.0f} {role.bottom - 14:.0f}H{port:.0f}"
        if abs(port - channel.x) < channel.width / 2:
            return f"{start}V{channel.y - channel.height / 2:.0f}"
        return (
            f"{start}V{channel.y - 10:.0f}Q{port:.0f} {channel.y:.0f} {port + turn:.0f}"
            f" {channel.y:.0f}H{side:.0f}"
        )

    def _label(self, link: Link) -> str:
        rate = self._rate(link)
        if rate is None:
            return ""
        role, channel = self._roles[link.role], self._channels[link.channel]
        if link in self._lane_ports:
            x, y = self._lane_ports[link], role.bottom + 32
            if not self._has_room_below(link.role):
                y = channel.y - 30
        else:
            x, y = (role.side(channel.x) + channel.side(role.x)) / 2, (role.y + channel.y) / 2 - 7
        idle = "" if rate else " idle"
        title = f"{link.role} {'to' if link.writes else 'from'} {link.channel}"
        return (
            f'<text class="rate{idle}" x="{x:.0f}" y="{y:.0f}" data-edge="{escape(title)}">'
            f"{compact(rate)}/s</text>"
        )

    def _rate(self, link: Link) -> float | None:
        if self._grid.channels[link.channel].sort == "shared":
            return rate_of(self._view, link.role, "updates") if link.writes else None
        return rate_of(self._view, link.role, traffic_name(link.channel, link.writes))

    def _role(self, there: Place) -> str:
        box, nodes = self._roles[there.name], self._view.of_kind(there.name)
        count = len(self._view.topology["roles"][there.name])
        left, top = box.x - box.width / 2, box.y - box.height / 2
        busy = [node["busy"] for node in nodes if node["busy"] is not None]
        mean = sum(busy) / len(busy) if busy else 0.0
        words = f"{mean:.0%} busy" if busy else "no time yet"
        if len(busy) > 1 and round(min(busy), 2) != round(max(busy), 2):
            words += f" ({100 * min(busy):.0f} to {max(busy):.0%})"
        restarts = sum(node["restarts"] for node in nodes)
        title = _title(there.name, count)
        bar = box.width - 28
        return (
            f'<g data-role="{escape(there.name)}" data-restarts="{restarts}">'
            f'<rect class="role" x="{left}" y="{top}" width="{box.width}" height="{box.height}"'
            f' rx="10"/><text class="name" x="{left + 14}" y="{top + 28}"'
            f"{_fitting(title, bar, 16)}>{title}</text>"
            f'<rect class="track" x="{left + 14}" y="{top + 42}" width="{bar}" height="7"'
            ' rx="3.5"/>'
            f'<rect class="busy" x="{left + 14}" y="{top + 42}" width="{bar * mean:.1f}" height="7"'
            f' rx="3.5"/><text class="small" x="{left + 14}" y="{top + 68}">{words}</text>'
            f"{_restart_badge(left + box.width, top, restarts)}</g>"
        )

    def _channel(self, there: Place) -> str:
        box, entry = self._channels[there.name], self._view.topology["channels"][there.name]
        left, top = box.x - box.width / 2, box.y - box.height / 2
        title = _title(there.name, entry["count"])
        shape = (
            f'<rect class="channel {there.sort}" x="{left}" y="{top}" width="{box.width}"'
            f' height="{box.height}" rx="{box.height / 2}"/>'
        )
        size = _fitting(title, box.width - 26, 13)
        name = f'<text class="channel-name" x="{box.x}" y="{top + 20}"{size}>{title}</text>'
        words, fill = _SORTS.get(there.sort, ""), ""
        if there.sort == "queue":
            filled, slots = self._view.status.get("queues", {}).get(there.name, 0), entry["slots"]
            words, width = f"{filled}/{slots} filled", box.width - 48
            share = min(1.0, filled / slots)
            fill = (
                f'<rect class="track" x="{left + 24}" y="{top + 39}" width="{width}" height="3"/>'
                f'<rect class="fill" x="{left + 24}" y="{top + 39}" width="{width * share:.1f}"'
                ' height="3"/>'
            )
        detail = f'<text class="small middle" x="{box.x}" y="{top + 34}">{words}</text>'
        return f'<g data-channel="{escape(there.name)}">{shape}{name}{detail}{fill}</g>'


_SORTS = {
    "board": "newest wins",
    "requests": "questions, answers",
    "stream": "questions, answers",
    "shared": "shared memory",
}


def _title(name: str, count: int) -> str:
    words = escape(name.replace("_", " ").replace("-", " "))
    return f"{words} {_TIMES}{count}" if count > 1 else words


def _fitting(title: str, width: float, size: float) -> str:
    """The style of a title that would not fit at its usual size."""
    needed = 0.6 * size * len(title.replace(_TIMES, "x"))
    return f' style="font-size:{size * width / needed:.1f}px"' if needed > width else ""


def _restart_badge(right: float, top: float, restarts: int) -> str:
    if not restarts:
        return ""
    words = f"{restarts} restart{'s' if restarts > 1 else ''}"
    width = 8 + 6.4 * len(words)
    return (
        f'<rect class="badge" x="{right - width - 8:.0f}" y="{top - 9}" width="{width:.0f}"'
        f' height="18" rx="9"/><text class="badge-text" x="{right - 8 - width / 2:.0f}"'
        f' y="{top + 4}">{words}</text>'
    )


def compact(value: float) -> str:
    """A rate in few characters: 0.3, 42, 1.2k, 3.4M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.5 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
