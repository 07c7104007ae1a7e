# SPDX-License-Identifier: Apache-2.0
"""Draws a run's timeline.json as SVG for the docs: one lane per node; grey is waiting.

Each lane is divided into cells half a pixel wide, and a cell has the colour of the stage that
fills most of it, so the size of a picture does not depend on the number of spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

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
_THEMES = """
svg.timeline { --ink: #1c2622; --soft: #66726c; --card: #fff; --line: #e1e6e3; --wait: #dfe5e2; }
@media (prefers-color-scheme: dark) { svg.timeline { --ink: #e5ece8; --soft: #93a19a;
  --card: #19211d; --line: #2b3631; --wait: #333f39; } }
"""


@dataclass(frozen=True)
class Lane:
    """Spans of one node, in seconds since the timeline began."""

    name: str
    kind: str
    stages: list[str]
    index: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def busy(self, seconds: float) -> float:
        """Share of its time outside of the stage `wait`, from its first span on."""
        working = np.array([stage != _WAIT for stage in self.stages])[self.index]
        spent = (self.end - self.start)[working].sum()
        return float(spent / max(seconds - self.start.min(initial=0.0), 1e-9))


def lanes_of(trace: dict[str, Any]) -> list[Lane]:
    """The lanes of a timeline.json."""
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    spans: dict[int, list[dict[str, Any]]] = {number: [] for number in names}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans[event["tid"]].append(event)
    lanes = []
    for number, events in spans.items():
        stages = list(dict.fromkeys(event["name"] for event in events))
        index = np.array([stages.index(event["name"]) for event in events], np.int64)
        start = np.array([event["ts"] for event in events]) / 1e6
        length = np.array([event["dur"] for event in events]) / 1e6
        kind = events[0]["cat"] if events else names[number]
        lanes.append(Lane(names[number], kind, stages, index, start, start + length))
    return lanes


def picture(trace: dict[str, Any]) -> str:
    """The SVG of a timeline.json."""
    seconds, every = trace["otherData"]["seconds"], lanes_of(trace)
    begin, end = _focus(every, seconds)
    lanes = _chosen(every)
    bottom = _TOP + len(lanes) * (_LANE + _GAP)
    width, height = _LEFT + _LANES + _RIGHT, bottom + 34
    rows = [
        _lane(lane, seconds, begin, end, _TOP + row * (_LANE + _GAP))
        for row, lane in enumerate(lanes)
    ]
    hidden = len(every) - len(lanes)
    more = f"; {hidden} more nodes are not shown" if hidden else ""
    words = f"{1e3 * (end - begin):,.0f} ms of {seconds:.1f} s; percent: busy over all of it{more}"
    name = escape(str(trace["otherData"].get("architecture", "timeline")))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{name}: what each node did"><style>{_THEMES}{STYLE}</style>'
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>'
        f"{_legend(every)}{''.join(rows)}{_axis(begin, end, bottom)}"
        f'<text class="soft" x="{_LEFT}" y="{height - 6}">{escape(words)}</text></svg>'
    )


def _focus(lanes: list[Lane], seconds: float) -> tuple[float, float]:
    """A part in the middle, so long that what comes again and again is seen several times."""
    periods = []
    for lane in lanes:
        for stage in ("learn", "apply", "step"):
            if stage in lane.stages:
                starts = lane.start[lane.index == lane.stages.index(stage)]
                if starts.size > _CYCLES:
                    periods.append(float(starts[-1] - starts[0]) / (starts.size - 1))
                    break
    longest = max(periods, default=seconds)
    shown = min(seconds, max(_SHORTEST_SECONDS, _CYCLES * longest))
    middle = seconds / 2
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


def _lane(lane: Lane, seconds: float, begin: float, end: float, top: int) -> str:
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
        f'<text class="soft" x="{_LEFT + _LANES + 8}" y="{middle}">{lane.busy(seconds):.0%}'
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


def _legend(lanes: list[Lane]) -> str:
    seen = {lane.stages[n] for lane in lanes for n in np.unique(lane.index)}
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
