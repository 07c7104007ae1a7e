# SPDX-License-Identifier: Apache-2.0
"""The grid in pixels: boxes, and the lines between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from veldt.diagram.grid import Link, Place, place

_ROLE_WIDTH = 176
_CHANNEL_WIDTH, _CHANNEL_HEIGHT = 148, 46
_GAP, _ROW_GAP, _LANE_GAP, _MARGIN = 64, 30, 62, 16
_PORT_SPACING, _GUTTER = 54, 20


@dataclass(frozen=True)
class Box:
    """A place in pixels, by its middle."""

    x: float
    y: float
    width: float
    height: float

    def side(self, towards: float) -> float:
        """The x of the side that faces `towards`."""
        return self.x + (self.width if towards > self.x else -self.width) / 2

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


class Layout:
    """Boxes of roles and channels, and paths of links, from a topology's description."""

    def __init__(self, description: dict[str, Any], role_height: int) -> None:
        self._grid = place(description)
        self._role_height = role_height
        self.links = self._grid.links
        self.roles = {name: self._box(there) for name, there in self._grid.roles.items()}
        self.channels = {name: self._box(there) for name, there in self._grid.channels.items()}
        self._ports = self._place_ports()
        boxes = [*self.roles.values(), *self.channels.values()]
        self.width = _MARGIN + max(box.right for box in boxes)
        self.height = _MARGIN + max(box.bottom for box in boxes)

    def _box(self, there: Place) -> Box:
        # Roles stand in even columns, channels in odd ones.
        pitch = _ROLE_WIDTH + _CHANNEL_WIDTH + 2 * _GAP
        height = self._role_height
        x = _MARGIN + _ROLE_WIDTH / 2 + there.column * pitch / 2
        y = _MARGIN + height / 2 + there.row * (height + _ROW_GAP)
        if there.lane is not None:
            y += (_LANE_GAP - height) / 2 + there.lane * _LANE_GAP
        size = (_ROLE_WIDTH, height) if there.is_role else (_CHANNEL_WIDTH, _CHANNEL_HEIGHT)
        return Box(x, y, *size)

    def _place_ports(self) -> dict[Link, float]:
        """Where on the underside of its role each lane begins: the x of its upright."""
        by_role: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            if self._grid.channels[link.channel].lane is not None:
                by_role[link.role].append(link)
        ports = {}
        for role, links in by_role.items():
            box = self.roles[role]
            links.sort(key=lambda link: self._order_below(box, self.channels[link.channel]))
            for number, link in enumerate(links):
                if self._has_room_below(role):
                    ports[link] = box.x + (number - (len(links) - 1) / 2) * _PORT_SPACING
                else:
                    ports[link] = box.right + _GUTTER + 8 * number
        return ports

    @staticmethod
    def _order_below(role: Box, channel: Box) -> tuple[bool, float]:
        """From left to right, so that the uprights do not cross the lanes: deep ones outside."""
        is_right = channel.x > role.x
        return is_right, -channel.y if is_right else channel.y

    def _has_room_below(self, role: str) -> bool:
        own, others = self._grid.roles[role], self._grid.roles.values()
        return not any(p.column == own.column and p.row > own.row for p in others)

    def path(self, link: Link) -> str:
        """The line from the role to the channel, as SVG writes it."""
        role, channel = self.roles[link.role], self.channels[link.channel]
        if link not in self._ports:
            x1, x2 = role.side(channel.x), channel.side(role.x)
            bend = (x2 - x1) / 2
            return (
                f"M{x1:.0f} {role.y:.0f}C{x1 + bend:.0f} {role.y:.0f} {x2 - bend:.0f}"
                f" {channel.y:.0f} {x2:.0f} {channel.y:.0f}"
            )
        port = self._ports[link]
        start = f"M{port:.0f} {role.bottom:.0f}"
        if not self._has_room_below(link.role):
            start = f"M{role.right:.0f} {role.bottom - 14:.0f}H{port:.0f}"
        if abs(port - channel.x) < channel.width / 2:
            return f"{start}V{channel.top:.0f}"
        turn = 10 if port < channel.x else -10
        return (
            f"{start}V{channel.y - 10:.0f}Q{port:.0f} {channel.y:.0f} {port + turn:.0f}"
            f" {channel.y:.0f}H{channel.side(port):.0f}"
        )

    def label_at(self, link: Link) -> tuple[float, float]:
        """Where a number about the link stands."""
        role, channel = self.roles[link.role], self.channels[link.channel]
        if link not in self._ports:
            return (role.side(channel.x) + channel.side(role.x)) / 2, (role.y + channel.y) / 2 - 7
        y = role.bottom + 32 if self._has_room_below(link.role) else channel.y - 30
        return self._ports[link], y
