# SPDX-License-Identifier: Apache-2.0
"""A timeline as a picture: one lane per node, coloured by what it does; grey is waiting.

Colours are names that a page may set, as in the diagrams, so that one picture serves light and
dark; one that stands alone brings both. Each lane is cut into cells half a pixel wide and a cell
shows what most of it was, so that a picture stays small however many spans there are.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from veldt.telemetry.timeline import Lane, Timeline

_COLOURS = {
    "step": "#2f9e6e",
    "infer": "#4c7fd1",
    "learn": "#d98a3d",
    "publish": "#a05fc0",
    "pull": "#c79bdc",
    "hand_over": "#25a3b5",
    "apply": "#c0603a",
    "add": "#7f9c3b",
    "draw": "#b9a42e",
    "assemble": "#6d8fa6",
    "sort": "#9a8266",
}
_WAIT, _OTHER = "wait", "#b06080"
_LEFT, _LANES, _RIGHT = 132, 760, 62
_TOP, _LANE, _GAP = 42, 20, 6
_CELLS = 2 * _LANES
_MOST_LANES = 24
_CYCLES = 12
_SHORTEST_SECONDS = 0.01
STYLE = """
svg.timeline { width: 100%; height: auto; }
.timeline text { fill: var(--ink, #1c2622); font: 12px system-ui, sans-serif; }
.timeline .soft { fill: var(--soft, #66726c); font-size: 11px; }
.timeline .ground { fill: var(--card, #fff); }
.timeline .wait { fill: var(--wait, #dfe5e2); } .timeline .lane { fill: none;
  stroke: var(--line, #e1e6e3); } .timeline .tick { stroke: var(--line, #e1e6e3); }
.body--dark .timeline .wait { fill: #333f39; }
"""
"""What a page with such pictures needs."""
_ALONE = """
svg.timeline { --ink: #1c2622; --soft: #66726c; --card: #fff; --line: #e1e6e3; --wait: #dfe5e2; }
@media (prefers-color-scheme: dark) { svg.timeline { --ink: #e5ece8; --soft: #93a19a;
  --card: #19211d; --line: #2b3631; --wait: #333f39; } }
"""


def picture(timeline: Timeline, alone: bool) -> str:
    begin, end = _focus(timeline)
    lanes = _chosen(timeline.lanes)
    bottom = _TOP + len(lanes) * (_LANE + _GAP)
    width, height = _LEFT + _LANES + _RIGHT, bottom + 34
    rows = [
        _lane(timeline, lane, begin, end, _TOP + row * (_LANE + _GAP))
        for row, lane in enumerate(lanes)
    ]
    hidden = len(timeline.lanes) - len(lanes)
    more = f"; {hidden} more nodes are not shown" if hidden else ""
    words = (
        f"{1e3 * (end - begin):,.0f} ms of {timeline.seconds:.1f} s; percent: busy over all of it"
        f"{more}"
    )
    name = escape(str(timeline.about.get("architecture", "timeline")))
    style = f"<style>{_ALONE}{STYLE}</style>" if alone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{name}: what each node did">{style}'
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>'
        f"{_legend(timeline)}{''.join(rows)}{_axis(begin, end, bottom)}"
        f'<text class="soft" x="{_LEFT}" y="{height - 6}">{escape(words)}</text></svg>'
    )


def for_page(svg: str) -> str:
    """A picture that stood alone, to be coloured by the page it is put into."""
    return re.sub("<style>.*?</style>", "", svg, flags=re.DOTALL)


def _focus(timeline: Timeline) -> tuple[float, float]:
    """A part in the middle, so long that what comes again and again is seen several times."""
    periods = []
    for lane in timeline.lanes:
        for stage in ("learn", "apply", "step"):
            if stage in lane.stages:
                starts = lane.start[lane.index == lane.stages.index(stage)]
                if starts.size > _CYCLES:
                    periods.append(float(starts[-1] - starts[0]) / (starts.size - 1))
                    break
    longest = max(periods, default=timeline.seconds)
    shown = min(timeline.seconds, max(_SHORTEST_SECONDS, _CYCLES * longest))
    middle = timeline.seconds / 2
    return middle - shown / 2, middle + shown / 2


def _chosen(lanes: list[Lane]) -> list[Lane]:
    """All lanes, or as many of each kind as there is room for."""
    if len(lanes) <= _MOST_LANES:
        return lanes
    kinds: dict[str, list[Lane]] = {}
    for lane in lanes:
        kinds.setdefault(lane.kind, []).append(lane)
    each = max(1, _MOST_LANES // len(kinds))
    kept = {lane.name for alike in kinds.values() for lane in alike[:each]}
    return [lane for lane in lanes if lane.name in kept][:_MOST_LANES]


def _lane(timeline: Timeline, lane: Lane, begin: float, end: float, top: int) -> str:
    middle = top + _LANE - 6
    title = lane.name if len(lane.name) <= 20 else f"{lane.name[:19]}…"
    bars = "".join(
        f'<rect x="{_LEFT + first / 2:g}" y="{top}" width="{(last - first) / 2:g}"'
        f' height="{_LANE}" {_paint(stage)}/>'
        for stage, first, last in _runs(lane, begin, end)
    )
    return (
        f'<g data-node="{escape(lane.name)}"><text x="8" y="{middle}">{escape(title)}</text>'
        f'<rect class="lane" x="{_LEFT}" y="{top}" width="{_LANES}" height="{_LANE}"/>{bars}'
        f'<text class="soft" x="{_LEFT + _LANES + 8}" y="{middle}">{timeline.busy(lane):.0%}'
        "</text></g>"
    )


def _runs(lane: Lane, begin: float, end: float) -> list[tuple[str, int, int]]:
    """(stage, first cell, cell after the last) of cells in a row that show the same."""
    edges = np.linspace(begin, end, _CELLS + 1)
    covered = np.zeros((len(lane.stages) + 1, _CELLS))
    for number in range(len(lane.stages)):
        own = lane.index == number
        if own.any():
            moments = np.stack([lane.start[own], lane.end[own]], axis=1).ravel()
            lengths = np.stack([np.zeros(own.sum()), lane.end[own] - lane.start[own]], axis=1)
            covered[number] = np.diff(np.interp(edges, moments, np.cumsum(lengths.ravel())))
    covered[-1] = (end - begin) / _CELLS - covered[:-1].sum(axis=0)
    shown = covered.argmax(axis=0)
    firsts = np.flatnonzero(np.diff(shown, prepend=-1))
    lasts = np.append(firsts[1:], _CELLS)
    pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
    untimed = len(lane.stages)
    return [(lane.stages[shown[f]], f, last) for f, last in pairs if shown[f] != untimed]


def _paint(stage: str) -> str:
    return 'class="wait"' if stage == _WAIT else f'fill="{_COLOURS.get(stage, _OTHER)}"'


def _legend(timeline: Timeline) -> str:
    seen = {lane.stages[n] for lane in timeline.lanes for n in np.unique(lane.index)}
    known = [stage for stage in (*_COLOURS, _WAIT) if stage in seen]
    parts, left = [], _LEFT
    for stage in [*known, *sorted(seen - set(known))]:
        word = stage.replace("_", " ")
        parts.append(
            f'<rect x="{left}" y="14" width="12" height="12" rx="3" {_paint(stage)}/>'
            f'<text x="{left + 17}" y="24">{escape(word)}</text>'
        )
        left += 34 + 7 * len(word)
    return "".join(parts)


def _axis(begin: float, end: float, bottom: int) -> str:
    parts = []
    for part in range(5):
        x = _LEFT + part * _LANES / 4
        moment = 1e3 * (end - begin) * part / 4
        digits = 0 if end - begin > 0.04 else 1
        parts.append(
            f'<line class="tick" x1="{x:g}" y1="{_TOP - 6}" x2="{x:g}" y2="{bottom}"/>'
            f'<text class="soft" x="{x:g}" y="{bottom + 12}" text-anchor="middle">'
            f"{moment:,.{digits}f} ms</text>"
        )
    return "".join(parts)
