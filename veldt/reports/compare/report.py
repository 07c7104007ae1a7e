# SPDX-License-Identifier: Apache-2.0
"""One HTML file with everything in it: opens offline, links to nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from veldt.files import write_whole
from veldt.reports.compare.diagrams import svg
from veldt.reports.compare.figures import Picture
from veldt.reports.compare.records import Record, Records, over_seeds
from veldt.reports.compare.runs import RunTask
from veldt.reports.compare.settings import Comparison
from veldt.reports.compare.statistics import Estimate
from veldt.topology import Topology

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; } td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd;
        text-align: right; } td:first-child, th:first-child { text-align: left; }
th { vertical-align: bottom; } img, svg { max-width: 100%; height: auto; }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; font-size: 12px; }
figure { margin: 1rem 0; } figcaption, .small { color: #555; font-size: 13px; }
"""


@dataclass(frozen=True)
class Story:
    """All that a report tells."""

    comparison: Comparison
    records: Records
    pictures: list[Picture]
    topologies: dict[str, Topology]
    """By label."""
    tasks: list[RunTask]
    left_out: dict[str, str]
    """Architectures that do not fit, and why."""
    failures: dict[str, str]
    ceiling: dict[str, float]
    machine: dict[str, Any]
    command: str


def write_report(path: Path, story: Story) -> None:
    title = f"{story.comparison.env}: {len(story.topologies)} architectures compared"
    body = "".join(
        (
            f"<h1>{escape(title)}</h1>",
            _conditions(story),
            _score_table(story),
            _missing(story),
            *(_titled(picture) for picture in story.pictures),
            _diagrams(story.topologies),
            machine_html(story.machine),
            _commands(story),
        )
    )
    write_page(path, title, body)


def write_page(path: Path, title: str, body: str) -> None:
    """A page that needs nothing but itself; whole or not at all."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )
    write_whole(path, page)


def _conditions(story: Story) -> str:
    given = story.comparison
    limits = [
        f"{given.max_seconds:g} seconds" if given.max_seconds else "",
        f"{given.total_env_steps:,} environment steps" if given.total_env_steps else "",
        f"a confirmed return of {given.target_return:g}" if given.target_return else "",
    ]
    ends = " or ".join(limit for limit in limits if limit)
    return (
        f"<p>{given.seeds} seeds each, one run at a time on backend {escape(given.backend)}; a run"
        f" ends after {ends}. Values are interquartile means over seeds with 95% bootstrap"
        " intervals; with few seeds these are wide, and with one they say nothing.</p>"
    )


def _score_table(story: Story) -> str:
    header = (
        "method",
        "time (s)",
        "score",
        "env steps",
        "env steps/s",
        "of the env-only ceiling",
        "lag (updates)",
        "replay ratio",
        "reached",
        "seeds",
    )
    head = "".join(f"<th>{name}</th>" for name in header)
    rows = "".join(_score_row(name, runs, story) for name, runs in story.records.items())
    return (
        f"<h2>Method, time, score</h2><table><tr>{head}</tr>{rows}</table>"
        f'<p class="small">Score: mean return of {story.comparison.evaluation_episodes} fresh'
        " episodes with the final weights, without exploration. Time: whole run, start included, or"
        " until the target was confirmed. Env-only ceiling:"
        f" {story.ceiling['env_steps_per_second']:,.0f} steps/s in one process.</p>"
    )


def _score_row(name: str, runs: list[Record], story: Story) -> str:
    limit = story.ceiling["env_steps_per_second"]

    def share(run: Record) -> float | None:
        rate = run.result.env_steps_per_second
        return None if rate is None else 100 * rate / limit

    reached = sum(run.result.reached_target for run in runs)
    cells = [
        name,
        _shown(over_seeds(runs, lambda r: r.result.seconds_to_target or r.result.wall_seconds)),
        _shown(over_seeds(runs, lambda run: run.result.evaluation_return)),
        _shown(over_seeds(runs, lambda run: run.result.env_steps), digits=0),
        _shown(over_seeds(runs, lambda run: run.result.env_steps_per_second), digits=0),
        _shown(over_seeds(runs, share), digits=0, unit="%"),
        _shown(over_seeds(runs, lambda run: run.result.policy_lag.get("mean")), digits=2),
        _shown(over_seeds(runs, lambda run: run.replay_ratio), digits=2),
        f"{reached} of {len(runs)}" if story.comparison.target_return is not None else "-",
        str(len(runs)),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _shown(found: Estimate | None, digits: int = 1, unit: str = "") -> str:
    if found is None:
        return "-"
    value, low, high = (
        f"{float(number):,.{digits}f}" for number in (found.value, found.low, found.high)
    )
    return f"{value}{unit}" if low == high else f"{value}{unit} [{low}, {high}]"


def _missing(story: Story) -> str:
    lines = [f"{name} does not fit: {why}" for name, why in story.left_out.items()]
    lines += [f"{name} failed: {why}" for name, why in story.failures.items()]
    if not lines:
        return ""
    return "<h2>Not in the table</h2><ul>" + _items(lines) + "</ul>"


def _items(lines: list[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _titled(picture: Picture) -> str:
    return f"<h2>{escape(picture.title)}</h2>{figure_html(picture)}"


def figure_html(picture: Picture) -> str:
    """The picture with its data inside the page."""
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    return (
        f'<figure><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _diagrams(topologies: dict[str, Topology]) -> str:
    parts = [
        f"<h3>{escape(name)}</h3>{svg(topology)}<details><summary>Mermaid</summary>"
        f"<pre>{escape(topology.describe('mermaid'))}</pre></details>"
        for name, topology in topologies.items()
    ]
    intro = (
        '<p class="small">Drawn from the wiring of these runs: boxes are roles, rounded boxes are'
        " channels, dashed arrows go back.</p>"
    )
    return f"<h2>Architectures</h2>{intro}{''.join(parts)}"


def machine_html(machine: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in machine.items()
    )
    return f"<h2>Machine</h2><table>{rows}</table>"


def _commands(story: Story) -> str:
    runs = "\n".join(task.command for task in story.tasks)
    return (
        f"<h2>Commands</h2><pre>{escape(story.command)}</pre>"
        f"<p>which ran, one after the other:</p><pre>{escape(runs)}</pre>"
    )
