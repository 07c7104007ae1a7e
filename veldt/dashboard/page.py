# SPDX-License-Identifier: Apache-2.0
"""The page: what each visitor sees, filled from a RunView about once per second."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from nicegui import ui

from veldt.dashboard import charts, league
from veldt.dashboard.elements import add_styles, card, div
from veldt.dashboard.metric_charts import METRIC_CHARTS, sizes
from veldt.dashboard.overlay import compact, live_diagram
from veldt.dashboard.reading import RunView
from veldt.telemetry.progress import clock, closing_lines, number

_STATES = {"starting": "starting", "running": "running", "lost": "stopped without a result"}
_LEAGUE_CHARTS = {
    "Strength of the main player": league.strength,
    "Payoff: win rate of row against column": league.payoff,
    "Family tree: models by the player they were frozen from": league.family,
    "Elo of the learning players": league.ratings,
}
_THEMES = (None, True, False)
"""As the browser wishes, dark, light."""


class Page:
    """The elements of one visitor's page; `home`: one of several runs, with a way to the others."""

    def __init__(self, view: RunView, home: bool = False) -> None:
        add_styles()
        self._dark = ui.dark_mode(None)
        with div("page"):
            self._make_header(view, home)
            self._outcome = ui.html(sanitize=False)
            with div("tiles"):
                self._tiles = {name: _Tile(name) for name in _TILES}
            with card("Who talks to whom: items per second, filled slots, busy share", "drawing"):
                self._topology = ui.mermaid("flowchart LR").classes("diagram")
            self._make_charts(view)
        self.refresh(view)

    def _make_header(self, view: RunView, home: bool) -> None:
        ui.page_title(f"{view.config['architecture']} on {view.option('env')} - Veldt")
        with div("top"):
            if home:
                ui.link("all runs", "/").classes("chip home")
            ui.label(view.config["architecture"]).classes("title")
            ui.label(str(view.option("env"))).classes("env")
            ui.label(f"{view.option('backend')} backend").classes("chip")
            ui.label(f"seed {view.option('seed')}").classes("chip")
            ui.label(f"{view.config['device']}, {view.config['parameters']:,} weights").classes(
                "chip"
            )
            div("space")
            self._state = ui.label().classes("chip state")
            button = ui.button(icon="contrast", on_click=self._change_theme)
            button.props('flat round dense aria-label="light or dark"').classes("theme")

    def _make_charts(self, view: RunView) -> None:
        with div("charts"):
            with card("Learning curve: mean return of the last 100 episodes", "wide"):
                self._curve = ui.echart(charts.curve(view)).classes("chart")
            with card("Policy lag: age of the weights acted with", "narrow"):
                self._lag = ui.echart(charts.lag(view)).classes("chart")
            with card("Speed: env steps per second", "narrow"):
                self._speed = ui.echart(charts.speed(view)).classes("chart")
            self._metrics: dict[str, Any] = {}
            self._metrics_place = div("charts-more")
            self._league = self._make_league_charts(view)
            with card("Busy share and restarts", "narrow last"):
                self._roles = ui.html(sanitize=False).classes("events")
            with card("Sizes", "narrow last"):
                self._sizes = ui.html(sanitize=False).classes("events")
            with card("Alarms and events", "narrow last"):
                self._events = ui.html(sanitize=False).classes("events")

    def _make_league_charts(self, view: RunView) -> dict[str, Any]:
        made = {}
        for title, draw in _LEAGUE_CHARTS.items() if league.has_league(view) else ():
            with card(title, "narrow"):
                made[title] = ui.echart(draw(view)).classes("chart")
        return made

    def _refresh_metrics(self, view: RunView) -> None:
        """A chart comes with the first number that it can show."""
        for place, each in enumerate(METRIC_CHARTS):
            options = each.options(view)
            if options is None:
                continue
            if each.title not in self._metrics:
                with self._metrics_place, card(each.title, "narrow").style(f"order: {place + 1}"):
                    self._metrics[each.title] = ui.echart(options).classes("chart")
            element = self._metrics[each.title]
            if dict(element.options) != options:
                element.options.update(options)

    def _change_theme(self) -> None:
        themes = _THEMES
        self._dark.value = themes[(themes.index(self._dark.value) + 1) % len(themes)]

    def refresh(self, view: RunView) -> None:
        """Show `view`; what did not change is not sent."""
        word = view.result.stopped_by if view.result else view.state
        self._state.set_text(_state_text(view))
        self._state.classes(replace=f"chip state {word}")
        self._outcome.set_content(_outcome(view))
        for name, (value, note, share) in tiles(view).items():
            self._tiles[name].show(value, note, share)
        if view.topology:
            self._topology.set_content(live_diagram(view))
        for element, options in (
            (self._curve, charts.curve(view)),
            (self._lag, charts.lag(view)),
            (self._speed, charts.speed(view)),
            *((each, _LEAGUE_CHARTS[title](view)) for title, each in self._league.items()),
        ):
            if dict(element.options) != options:
                element.options.update(options)
        self._refresh_metrics(view)
        self._sizes.set_content(_sizes(view))
        self._roles.set_content(_roles(view))
        self._events.set_content(_events(view))


class _Tile:
    def __init__(self, name: str) -> None:
        with div("card tile"):
            ui.html(f"<h2>{name}</h2>", sanitize=False)
            marker = name.lower().replace(" ", "-")
            self._value = ui.label().classes("value").props(f'data-tile="{marker}"')
            self._note = ui.label().classes("note")
            with div("meter") as self._meter:
                self._bar = div("")

    def show(self, value: str, note: str, share: float | None) -> None:
        self._value.set_text(value)
        self._note.set_text(note)
        self._meter.set_visibility(share is not None)
        self._bar.style(f"width: {100 * min(1.0, max(0.0, share or 0.0)):.1f}%")


_TILES = ("Return", "Env steps", "Steps per second", "Updates", "Policy lag", "Time")


def tiles(view: RunView) -> dict[str, tuple[str, str, float | None]]:
    """Value, note and share of the way, by title."""
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
    return {
        "Return": (number(status.get("mean_return_100")), goal, None),
        "Env steps": (
            f"{steps:,}",
            f"of {total:,}" if total else f"{status.get('episodes', 0):,} episodes",
            steps / total if total else None,
        ),
        "Steps per second": (
            "-" if rate is None else compact(rate),
            "over the run" if view.state == "ended" else "now",
            None,
        ),
        "Updates": (f"{status.get('updates', 0):,}", f"{compact(updates)}/s", None),
        "Policy lag": (number(lag.get("mean")), f"mean; max {lag.get('max', 0)}", None),
        "Time": (
            clock(seconds),
            f"of {clock(limit)}" if limit else f"restarts: {view.restarts}",
            seconds / limit if limit else None,
        ),
    }


def _state_text(view: RunView) -> str:
    return "finished" if view.state == "ended" else _STATES[view.state]


def _outcome(view: RunView) -> str:
    if view.result is not None:
        first, *others = closing_lines(view.result)
        more = "".join(f'<div class="more">{escape(line)}</div>' for line in others)
        return (
            f'<div class="card result {view.result.stopped_by}"><div class="first">'
            f"{escape(first)}</div>{more}</div>"
        )
    if view.state == "lost":
        return (
            '<div class="card result lost"><div class="first">The run\'s process is gone.</div>'
            '<div class="more">veldt resume goes on from its newest checkpoint.</div></div>'
        )
    return ""


def _roles(view: RunView) -> str:
    nodes = view.status.get("nodes", {})
    rows = []
    for name, node in nodes.items():
        busy, restarts = node["busy"], node["restarts"]
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


def _sizes(view: RunView) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in sizes(view).items()
    )
    return f'<table class="roles">{rows}</table>'


_SORTS = {"node": "process", "alarm": "alarm", "checkpoint": "checkpoint", "end": "end"}


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
            f'<span class="sort">{escape(_SORTS.get(event["sort"], event["sort"]))}</span>'
            f'<span class="text">{escape(first)}</span></div>'
        )
    return "".join(lines) or '<div class="calm">None. All is well.</div>'
