# SPDX-License-Identifier: Apache-2.0
"""The one picture of a topology, for reports and for the live page, which adds numbers to it.

Colours are names that a page may set, so that one picture serves light and dark. Nothing moves by
itself: repainting costs cores."""

from __future__ import annotations

from html import escape
from typing import Any

from veldt.diagram.grid import Link
from veldt.diagram.layout import Box, Layout

_TIMES = "&#215;"
_CHANNEL_WORDS = {
    "queue": "queue",
    "board": "newest wins",
    "requests": "questions, answers",
    "stream": "questions, answers",
    "shared": "shared memory",
}
_MARKER = (
    '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto-start-reverse"><path d="M0 0.5 7.5 4 0 7.5z" class="{0}"/></marker>'
)
STYLE = """
svg.topology { width: 100%; height: auto; display: inline-block; }
.topology text { fill: var(--ink, #1c2622); font-family: system-ui, sans-serif; }
.topology .role { fill: var(--card, #fff); stroke: var(--accent, #2f9e6e); stroke-width: 1.6; }
.topology .name { font-size: 16px; font-weight: 620; }
.topology .small { font-size: 12px; fill: var(--soft, #66726c); }
.topology .middle { text-anchor: middle; }
.topology .channel { fill: var(--channel, #f3f6fb); stroke: var(--channel-line, #c6d3ea);
  stroke-width: 1.2; }
.topology .channel-name { font-size: 13px; text-anchor: middle; font-weight: 560; }
.topology .link { fill: none; stroke: var(--accent, #2f9e6e); stroke-width: 1.8; }
.topology .link.idle { stroke: var(--soft, #66726c); stroke-width: 1.1; opacity: .55; }
.topology .tip { fill: var(--accent, #2f9e6e); } .topology .tip-idle { fill: var(--soft, #66726c); }
"""
"""What a page with such pictures needs."""


class Overlay:
    """What a picture shows beyond the wiring: nothing, unless a page knows more."""

    role_height = 46

    def is_idle(self, link: Link) -> bool:
        """Whether the link's line is drawn faintly."""
        return False

    def on_link(self, link: Link, at: tuple[float, float]) -> str:
        return ""

    def role_attributes(self, name: str) -> str:
        return ""

    def in_role(self, name: str, box: Box) -> str:
        return ""

    def channel_words(self, name: str) -> str | None:
        """What stands under the channel's name instead of its sort."""
        return None

    def in_channel(self, name: str, box: Box) -> str:
        return ""


class Diagram:
    """Laid out once per topology, drawn with an overlay whenever its numbers change."""

    def __init__(self, description: dict[str, Any], overlay: Overlay | None = None) -> None:
        self._description = description
        self._overlay = overlay or Overlay()
        self.layout = Layout(description, self._overlay.role_height)

    def svg(self, overlay: Overlay | None = None) -> str:
        self._overlay = overlay or self._overlay
        layout = self.layout
        parts = [
            *map(self._line, layout.links),
            *(self._role(name, box) for name, box in layout.roles.items()),
            *(self._channel(name, box) for name, box in layout.channels.items()),
            *(self._overlay.on_link(link, layout.label_at(link)) for link in layout.links),
        ]
        return (
            f'<svg class="topology" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}" role="img"'
            f' style="max-width:{1.15 * layout.width:.0f}px"'
            f' aria-label="{escape(self._description["architecture"])}: who talks to whom">'
            f"<defs>{_MARKER.format('tip')}{_MARKER.format('tip-idle')}</defs>"
            f"{''.join(parts)}</svg>"
        )

    def _line(self, link: Link) -> str:
        idle, tip = (" idle", "tip-idle") if self._overlay.is_idle(link) else ("", "tip")
        asks = self._description["channels"][link.channel]["sort"] in ("requests", "stream")
        # The path runs from the role to the channel.
        ends = f' marker-end="url(#{tip})"' if link.writes or asks else ""
        ends += f' marker-start="url(#{tip})"' if link.reads or asks else ""
        return f'<path class="link{idle}" d="{self.layout.path(link)}"{ends}/>'

    def _role(self, name: str, box: Box) -> str:
        title = _title(name, len(self._description["roles"][name]))
        size = _fitting(title, box.width - 28, 16)
        shown = _rectangle("role", box, 10) + _text(
            "name", box.left + 14, box.top + 28, title, size
        )
        attributes = f'data-role="{escape(name)}"{self._overlay.role_attributes(name)}'
        return f"<g {attributes}>{shown}{self._overlay.in_role(name, box)}</g>"

    def _channel(self, name: str, box: Box) -> str:
        entry = self._description["channels"][name]
        title, sort = _title(name, entry["count"]), entry["sort"]
        words = self._overlay.channel_words(name) or _CHANNEL_WORDS[sort]
        size = _fitting(title, box.width - 26, 13)
        shown = _rectangle(f"channel {sort}", box, box.height / 2)
        shown += _text("channel-name", box.x, box.top + 20, title, size)
        shown += _text("small middle", box.x, box.top + 34, words)
        return f'<g data-channel="{escape(name)}">{shown}{self._overlay.in_channel(name, box)}</g>'


def _rectangle(kind: str, box: Box, radius: float) -> str:
    place = f'x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}"'
    return f'<rect class="{kind}" {place} rx="{radius}"/>'


def _text(kind: str, x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}"{attributes}>{words}</text>'


def _title(name: str, count: int) -> str:
    words = escape(name.replace("_", " ").replace("-", " "))
    return f"{words} {_TIMES}{count}" if count > 1 else words


def _fitting(title: str, width: float, size: float) -> str:
    """The style of a title that would not fit at its usual size."""
    needed = 0.6 * size * len(title.replace(_TIMES, "x"))
    return f' style="font-size:{size * width / needed:.1f}px"' if needed > width else ""
