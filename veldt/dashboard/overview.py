# SPDX-License-Identifier: Apache-2.0
"""Several runs side by side: a table of where each stands, and their curves in common charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from nicegui import ui

from veldt.dashboard.charts import Options, line
from veldt.dashboard.elements import add_styles, card, div
from veldt.dashboard.metric_charts import COLOURS, metric_of, named_lines, points_of
from veldt.dashboard.overlay import compact
from veldt.dashboard.reading import Point, RunView
from veldt.telemetry.progress import clock, number

Views = Sequence[tuple[str, RunView]]
"""Each run with its name, in the order of the page."""
_HEAD = ("", "run", "architecture", "environment", "state", "return", "steps", "steps/s", "time")


class Overview:
    """The elements of one visitor's page."""

    def __init__(self, views: Views) -> None:
        add_styles()
        ui.page_title(f"{len(views)} runs - Veldt")
        with div("page"):
            with div("top"):
                ui.label(f"{len(views)} runs").classes("title")
            with card("Where each stands", "drawing"):
                self._table = ui.html(sanitize=False)
            with div("charts"):
                self._charts = {}
                for title, draw in _CHARTS.items():
                    with card(title, "half"):
                        self._charts[title] = ui.echart(draw(views)).classes("chart tall")
        self.refresh(views)

    def refresh(self, views: Views) -> None:
        self._table.set_content(_table(views))
        for title, element in self._charts.items():
            options = _CHARTS[title](views)
            if dict(element.options) != options:
                element.options.update(options)


def _table(views: Views) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    rows = []
    for place, (name, view) in enumerate(views):
        status = view.status
        rate = status.get("env_steps_per_second")
        cells = (
            f'<span class="swatch" style="background:{COLOURS[place % len(COLOURS)]}"></span>',
            f'<a href="run/{place}">{escape(name)}</a>',
            escape(view.config["architecture"]),
            escape(str(view.option("env"))),
            f'<span class="chip state {view.state}">{view.state}</span>',
            number(status.get("mean_return_100")),
            f"{status.get('env_steps', 0):,}",
            "-" if rate is None else compact(rate),
            clock(status.get("seconds", 0.0)),
        )
        rows.append(f"<tr data-run='{place}'>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<table class="runs"><tr>{head}</tr>{"".join(rows)}</table>'


def _overlaid(value: Callable[[Point], float | None]) -> Callable[[Views], Options]:
    """One line per run over env steps."""

    def draw(views: Views) -> Options:
        lines = [
            line(name, points_of(view.curve, value), COLOURS[place % len(COLOURS)])
            for place, (name, view) in enumerate(views)
        ]
        return named_lines(lines, "env steps")

    return draw


def _over_time(views: Views) -> Options:
    lines = []
    for place, (name, view) in enumerate(views):
        start = view.curve[0].time if view.curve else 0.0
        points: list[list[Any]] = [
            [round(point.time - start, 1), float(f"{point.mean_return:.5g}")]
            for point in view.curve
            if point.mean_return is not None
        ]
        lines.append(line(name, points, COLOURS[place % len(COLOURS)]))
    return named_lines(lines, "seconds")


_CHARTS: dict[str, Callable[[Views], Options]] = {
    "Return over env steps": _overlaid(lambda point: point.mean_return),
    "Return over time": _over_time,
    "Env steps per second": _overlaid(lambda point: point.env_steps_per_second),
    "Loss of the value function": _overlaid(metric_of("Loss", last=True)),
    "Entropy of the policy": _overlaid(metric_of("Entropy of the policy")),
    "Gradient norm": _overlaid(metric_of("Gradient norm")),
}
