# SPDX-License-Identifier: Apache-2.0
"""A topology as an inline SVG: roles as boxes, channels as rounded boxes, edges as arrows.

Columns follow the data from the first role; an edge that goes back bends below the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from html import escape

from veldt.diagram import stem
from veldt.topology import Topology

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 132, 34, 44, 18, 14


@dataclass(frozen=True)
class _Box:
    name: str
    text: str
    is_role: bool
    column: int
    line: int

    @property
    def left(self) -> int:
        return _MARGIN + self.column * (_WIDTH + _GAP_X)

    @property
    def middle(self) -> int:
        return _MARGIN + self.line * (_HEIGHT + _GAP_Y) + _HEIGHT // 2


def svg(topology: Topology) -> str:
    """The drawing; numbered channels of one kind ("copy-0", "copy-1") are one box."""
    drawn = list(dict.fromkeys((stem(a), stem(b)) for a, b, _ in topology.edges()))
    roles = {kind: len(nodes) for kind, nodes in topology.kinds().items()}
    boxes = _place(drawn, roles, _channel_counts(topology))
    columns = 1 + max(box.column for box in boxes.values())
    lines = 1 + max(box.line for box in boxes.values())
    # What is written and read by the same role is one arrow with two tips.
    edges = [(a, b) for a, b in drawn if (b, a) not in drawn or not _goes_back(boxes, (a, b))]
    back = [edge for edge in edges if _goes_back(boxes, edge)]
    width = 2 * _MARGIN + columns * _WIDTH + (columns - 1) * _GAP_X
    floor = _MARGIN + lines * (_HEIGHT + _GAP_Y)
    height = floor + 10 * len(back) + _MARGIN
    depths = {edge: floor + 10 * number for number, edge in enumerate(back)}
    arrows = [
        _arrow(boxes[a], boxes[b], depths.get((a, b)), both_ways=(b, a) in drawn) for a, b in edges
    ]
    shapes = [_shape(box) for box in boxes.values()]
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#555"/>'
        "</marker></defs>"
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(topology.architecture)}: who talks to whom">'
        f"{marker}{''.join(arrows)}{''.join(shapes)}</svg>"
    )


def _channel_counts(topology: Topology) -> dict[str, int]:
    names = [queue.spec.name for queue in topology.queues]
    names += [board.spec.name for board in topology.boards]
    names += [shared.spec.name for shared in topology.shared]
    names += [requests.spec.name for requests in topology.requests]
    names += [stream.spec.name for stream in topology.streams]
    counts: dict[str, int] = {}
    for name in map(stem, names):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _place(
    edges: list[tuple[str, str]], roles: dict[str, int], channels: dict[str, int]
) -> dict[str, _Box]:
    """Columns by distance from the first role along the edges; within one, first come first."""
    distance: dict[str, int] = {}
    for root in roles:
        if root not in distance:
            distance[root] = 0
            todo = deque([root])
            while todo:
                here = todo.popleft()
                for source, target in edges:
                    if source == here and target not in distance:
                        distance[target] = distance[here] + 1
                        todo.append(target)
    linked = {name for edge in edges for name in edge}
    names = [name for name in distance if name in linked or name in roles]
    names += [name for name in channels if name in linked and name not in distance]
    filled: dict[int, int] = {}
    boxes = {}
    for name in names:
        column = distance.get(name, 0)
        line = filled.get(column, 0)
        filled[column] = line + 1
        is_role = name in roles
        count = roles[name] if is_role else channels.get(name, 1)
        text = f"{name} x{count}" if is_role or count > 1 else name
        boxes[name] = _Box(name, text, is_role, column, line)
    return boxes


def _goes_back(boxes: dict[str, _Box], edge: tuple[str, str]) -> bool:
    return boxes[edge[1]].column <= boxes[edge[0]].column


def _arrow(source: _Box, target: _Box, depth: int | None, both_ways: bool) -> str:
    style = 'fill="none" stroke="#555" stroke-width="1.2" marker-end="url(#tip)"'
    if both_ways:
        style += ' marker-start="url(#tip)"'
    if depth is None:
        x1, y1, x2, y2 = source.left + _WIDTH, source.middle, target.left, target.middle
        bend = (x2 - x1) / 2
        return f'<path d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" {style}/>'
    x1, x2 = source.left + _WIDTH * 2 // 3, target.left + _WIDTH // 3
    y1, y2 = source.middle + _HEIGHT // 2, target.middle + _HEIGHT // 2
    return f'<path d="M{x1} {y1}V{depth}H{x2}V{y2}" {style} stroke-dasharray="4 3"/>'


def _shape(box: _Box) -> str:
    top, radius = box.middle - _HEIGHT // 2, 3 if box.is_role else _HEIGHT // 2
    fill = "#dbe9f6" if box.is_role else "#f4f1e6"
    return (
        f'<rect x="{box.left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius}"'
        f' fill="{fill}" stroke="#555"/>'
        f'<text x="{box.left + _WIDTH // 2}" y="{box.middle + 4}" text-anchor="middle"'
        f' font-size="12">{escape(box.text)}</text>'
    )
