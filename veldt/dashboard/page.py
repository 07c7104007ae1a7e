# SPDX-License-Identifier: Apache-2.0
"""The pages, refreshed from run directories about once per second.

A run directory may come from a stranger, so every text of it is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    "Learning curve: mean return of the last 100 episodes": (charts.curve, "wide"),
    "Policy lag: updates between acting and learning": (charts.lag, "narrow"),
}
_LEAGUE_CHARTS = {"Payoff: win rate of row against column": (charts.payoff, "narrow")}
_HEAD = ("run", "architecture", "environment", "state", "return", "steps", "steps/s", "time")


def _div(classes: str) -> ui.element:
    return ui.element("div").classes(classes)


def _card(title: str, classes: str) -> ui.element:
    made = _div(f"card {classes}")
    with made:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return made


class RunPage:
    """One run; `is_one_of_several` adds a link to the overview."""

    def __init__(self, view: RunView, is_one_of_several: bool = False) -> None:
        ui.add_css(_STYLE)
        ui.dark_mode(None)  # as the browser prefers
        with _div("page"):
            self._make_header(view, is_one_of_several)
            self._outcome = ui.html(sanitize=False)
            with _div("tiles"):
                self._tiles = {name: _tile(name) for name in tiles(view)}
            with _card("Topology: items per second, filled slots, busy share", "drawing"):
                self._topology = ui.mermaid("flowchart LR").classes("diagram")
            with _div("charts"):
                self._make_charts(view)
        self.refresh(view)

    def _make_header(self, view: RunView, is_one_of_several: bool) -> None:
        ui.page_title(f"{view.config['architecture']} on {view.option('env')} - Veldt")
        with _div("top"):
            if is_one_of_several:
                ui.link("all runs", "/").classes("chip home")
            ui.label(view.config["architecture"]).classes("title")
            ui.label(str(view.option("env"))).classes("env")
            weights = f"{view.config['device']}, {view.config['parameters']:,} weights"
            ui.label(f"{view.option('backend')} backend").classes("chip")
            ui.label(f"seed {view.option('seed')}").classes("chip")
            ui.label(weights).classes("chip")
            _div("space")
            self._state = ui.label().classes("chip state")

    def _make_charts(self, view: RunView) -> None:
        is_league = view.config["architecture"] == "league"
        self._drawn = _CHARTS | (_LEAGUE_CHARTS if is_league else {})
        self._charts = {}
        for title, (draw, width) in self._drawn.items():
            with _card(title, width):
                self._charts[title] = ui.echart(draw(view)).classes("chart")
        with _card("Busy share and restarts", "narrow"):
            self._nodes = ui.html(sanitize=False).classes("events")
        with _card("Alarms and events", "narrow"):
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
        for title, (draw, _) in self._drawn.items():
            options, chart = draw(view), self._charts[title]
            if dict(chart.options) != options:
                chart.options.update(options)
        self._nodes.set_content(_nodes(view))
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
    if view.result is not None:
        first, *others = closing_lines(view.result)
        more = "".join(f'<div class="more">{escape(line)}</div>' for line in others)
        return (
            f'<div class="card result {_outcome_class(view)}"><div class="first">'
            f"{escape(first)}</div>{more}</div>"
        )
    if view.state == "lost":
        return (
            '<div class="card result lost"><div class="first">The run\'s process is gone.</div>'
            '<div class="more">veldt resume continues from its newest checkpoint.</div></div>'
        )
    return ""


def _nodes(view: RunView) -> str:
    nodes = view.status.get("nodes", {})
    rows = []
    for name, node in nodes.items():
        busy, restarts = node["busy"], int(node["restarts"])
        share = 0.0 if busy is None else busy
        mark = ' class="restarted"' if restarts else ""
        rows.append(
            f'<tr data-node="{escape(name)}"><td>{escape(name)}</td><td class="bar"><div'
            f' class="meter"><div style="width:{share:.0%}"></div></div></td>'
            f"<td>{'-' if busy is None else f'{busy:.0%}'}</td><td{mark}>{restarts}</td></tr>"
        )
    if not rows:
        return '<div class="calm">Nothing yet.</div>'
    head = "<tr><th>node</th><th></th><th>busy</th><th>restarts</th></tr>"
    return f'<table class="roles">{head}{"".join(rows)}</table>'


def _events(view: RunView) -> str:
    dropped = {why: n for why, n in view.status.get("dropped", {}).items() if n}
    lines = [
        f'<div class="event drop"><span class="sort">dropped</span><span class="text">{n:,}'
        f" ({escape(why.replace('_', ' '))})</span></div>"
        for why, n in dropped.items()
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


Views = Sequence[tuple[str, RunView]]
"""Each run with its name, in the order of the page."""


class Overview:
    """Several runs: a table of their states."""

    def __init__(self, views: Views) -> None:
        ui.add_css(_STYLE)
        ui.page_title(f"{len(views)} runs - Veldt")
        with _div("page"):
            with _div("top"):
                ui.label(f"{len(views)} runs").classes("title")
            with _card("Runs", "drawing"):
                self._table = ui.html(sanitize=False)
        self.refresh(views)

    def refresh(self, views: Views) -> None:
        self._table.set_content(_table(views))


def _table(views: Views) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    rows = []
    for place, (name, view) in enumerate(views):
        status = view.status
        rate = status.get("env_steps_per_second")
        cells = (
            f'<a href="run/{place}">{escape(name)}</a>',
            escape(view.config["architecture"]),
            escape(str(view.option("env"))),
            f'<span class="chip state {view.state}">{escape(view.state)}</span>',
            number(status.get("mean_return_100")),
            f"{status.get('env_steps', 0):,}",
            "-" if rate is None else compact(rate),
            clock(status.get("seconds", 0.0)),
        )
        rows.append(f"<tr data-run='{place}'>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<table class="runs"><tr>{head}</tr>{"".join(rows)}</table>'
