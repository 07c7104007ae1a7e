# SPDX-License-Identifier: Apache-2.0
"""The page, refreshed from a run directory about once per second.

A run directory may come from a stranger, so every text of it is escaped.
"""

from __future__ import annotations

import time
from html import escape
from pathlib import Path

from nicegui import ui

from veldt.dashboard import charts
from veldt.dashboard.charts import compact, live_diagram
from veldt.dashboard.reading import RunView
from veldt.telemetry.progress import clock, closing_lines, number

_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_STATES = {"starting": "starting", "running": "running", "lost": "stopped without a result"}
_CHARTS = {
    "Learning curve: mean return of the last 100 episodes; orange: evaluations": charts.curve,
    "Policy lag: updates between acting and learning": charts.lag,
}


def _div(classes: str) -> ui.element:
    return ui.element("div").classes(classes)


def _card(title: str, classes: str) -> ui.element:
    made = _div(f"card {classes}")
    with made:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return made


class RunPage:
    """The page of one run."""

    def __init__(self, view: RunView) -> None:
        ui.add_css(_STYLE)
        ui.dark_mode(None)  # as the browser prefers
        with _div("page"):
            self._make_header(view)
            self._outcome = ui.html(sanitize=False)
            with _div("tiles"):
                self._tiles = {name: _tile(name) for name in tiles(view)}
            with _card("Topology: items per second, filled slots, busy share", "drawing"):
                self._topology = ui.mermaid("flowchart LR").classes("diagram")
            with _div("charts"):
                self._make_charts(view)
        self.refresh(view)

    def _make_header(self, view: RunView) -> None:
        ui.page_title(f"{view.config['architecture']} on {view.option('env')} - Veldt")
        with _div("top"):
            ui.label(view.config["architecture"]).classes("title")
            ui.label(str(view.option("env"))).classes("env")
            ui.label(f"{view.option('backend')} backend").classes("chip")
            ui.label(f"seed {view.option('seed')}").classes("chip")
            weights = f"{view.config['parameters']:,} weights"
            ui.label(f"{view.config['device']}, {weights}").classes("chip")
            _div("space")
            self._state = ui.label().classes("chip state")

    def _make_charts(self, view: RunView) -> None:
        self._charts = {}
        for title, draw in _CHARTS.items():
            with _card(title, "wide" if draw is charts.curve else "narrow"):
                self._charts[title] = ui.echart(draw(view)).classes("chart")
        with _card("Alarms and events", "wide"):
            self._events = ui.html(sanitize=False).classes("events")

    def refresh(self, view: RunView) -> None:
        """Show `view`; only what changed is sent to the browser."""
        self._state.set_text("finished" if view.state == "ended" else _STATES[view.state])
        self._state.classes(replace=f"chip state {_outcome_class(view)}")
        self._outcome.set_content(_outcome(view))
        for name, texts in tiles(view).items():
            for label, text in zip(self._tiles[name], texts, strict=True):
                label.set_text(text)
        self._topology.set_content(live_diagram(view))
        for title, draw in _CHARTS.items():
            options, chart = draw(view), self._charts[title]
            if dict(chart.options) != options:
                chart.options.update(options)
        self._events.set_content(_events(view))


def _tile(name: str) -> tuple[ui.label, ui.label]:
    """Labels of the value and of the note."""
    with _card(name, "tile"):
        marker = name.lower().replace(" ", "-")
        value = ui.label().classes("value").props(f'data-tile="{marker}"')
        return value, ui.label().classes("note")


def tiles(view: RunView) -> dict[str, tuple[str, str]]:
    """Value and note by title."""
    status = view.status
    lag, seconds = status.get("policy_lag", {}), status.get("seconds", 0.0)
    steps, total = status.get("env_steps", 0), view.option("total_env_steps")
    limit, target = view.option("max_seconds"), view.option("target_return")
    rate = status.get("env_steps_per_second")
    updates = sum(each.get("updates", 0.0) for each in status.get("rates", {}).values())
    goal = f"target {target:g}" if target is not None else "last 100 episodes"
    evaluation = view.result.evaluation_return if view.result else None
    if evaluation is not None:
        goal = f"evaluation {number(evaluation)}"
    episodes = f"{status.get('episodes', 0):,} episodes"
    return {
        "Return": (number(status.get("mean_return_100")), goal),
        "Env steps": (f"{steps:,}", f"of {total:,}" if total else episodes),
        "Steps per second": (
            "-" if rate is None else compact(rate),
            "over the run" if view.state == "ended" else "now",
        ),
        "Updates": (f"{status.get('updates', 0):,}", f"{compact(updates)}/s"),
        "Policy lag": (number(lag.get("mean")), f"mean; max {lag.get('max', 0)}"),
        "Time": (clock(seconds), f"of {clock(limit)}" if limit else f"restarts: {view.restarts}"),
    }


def _outcome_class(view: RunView) -> str:
    """Class of the style sheet for how a run ended, or for its state."""
    stopped_by = view.result.stopped_by if view.result else ""
    return stopped_by if stopped_by in ("target", "failure") else view.state


def _outcome(view: RunView) -> str:
    lines = closing_lines(view.result) if view.result else []
    if view.state == "lost":
        continues = "veldt resume continues from its newest checkpoint."
        lines = ["The run's process is gone.", continues]
    shown = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return shown and f'<div class="card result {_outcome_class(view)}">{shown}</div>'


def _events(view: RunView) -> str:
    lines = [
        f'<div class="event drop"><span class="sort">dropped</span><span class="text">{n:,}'
        f" ({escape(why.replace('_', ' '))})</span></div>"
        for why, n in view.status.get("dropped", {}).items()
        if n
    ]
    for event in reversed(view.events):
        at = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        first, _, rest = event["text"].partition("\n")
        lines.append(
            f'<div class="event {escape(event["sort"])}" title="{escape(rest)}"><time>{at}</time>'
            f'<span class="sort">{escape(event["sort"])}</span>'
            f'<span class="text">{escape(first)}</span></div>'
        )
    return "".join(lines) or '<div class="calm">None.</div>'
