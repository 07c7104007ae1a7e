# SPDX-License-Identifier: Apache-2.0
"""claims.html: every claim with its rule, what was measured, its verdict and its figure. Made from
claims.json, opens offline, links to nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from veldt.reports.claims.claim import DOES_NOT_HOLD, HOLDS, PART_COLUMNS, part_cells, shown
from veldt.reports.compare.figures import Picture
from veldt.reports.compare.report import figure_html, machine_html, write_page

_COLOURS = {HOLDS: "#1a7f37", DOES_NOT_HOLD: "#b42318"}
_TITLE = "The claims of the lineage, examined"


def write_report(path: Path, document: dict[str, Any]) -> None:
    claims = document["claims"]
    minutes = document["seconds"] / 60
    body = "".join(
        (
            f"<h1>{_TITLE}</h1><p>Each claim is a small experiment on this machine; all runs took"
            f" {minutes:.1f} minutes. A claim holds if the 95% bootstrap interval of the"
            " interquartile mean over seeds passes the bound of its rule, does not hold if all of"
            " the interval fails it, and is undecided in between. Rules and bounds were written"
            " before these runs; settings were chosen in smaller probes, and the notes say where"
            " that shaped a claim. What does not hold here may hold at another scale.</p>",
            _summary(claims),
            *(_section(claim, path.parent) for claim in claims),
            machine_html(document["machine"]),
            f"<h2>Command</h2><pre>{escape(document['command'])}</pre>",
        )
    )
    write_page(path, _TITLE, body)


def _summary(claims: list[dict[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{claim["name"]}">{escape(claim["statement"])}</a></td>'
        f"<td>{escape(claim['paper'])}</td><td>{_verdict(claim)}</td></tr>"
        for claim in claims
    )
    return f"<table><tr><th>claim</th><th>from</th><th>verdict</th></tr>{rows}</table>"


def _verdict(claim: dict[str, Any]) -> str:
    outcome = "" if claim["quick"] else claim["outcome"]
    colour = _COLOURS.get(outcome, "#7a5c00")
    return f'<strong style="color:{colour}">{escape(claim["verdict"])}</strong>'


def _section(claim: dict[str, Any], folder: Path) -> str:
    figure = ""
    if claim["figure"]:
        picture = Picture(claim["statement"], claim["caption"], folder / claim["figure"])
        figure = figure_html(picture)
    settings = ", ".join(f"{name} {shown(value)}" for name, value in claim["settings"].items())
    notes = "".join(f"<p>{escape(note)}</p>" for note in claim["notes"])
    return (
        f'<h2 id="{claim["name"]}">{escape(claim["statement"])}</h2>'
        f"<p>{_verdict(claim)}. {escape(claim['paper'])}.</p>"
        f"<p><em>Rule.</em> {escape(claim['rule'])}</p>{_parts(claim['parts'])}{notes}{figure}"
        f'<p class="small">{len(claim["rows"])} runs, {claim["seconds"]:.0f} s. Settings:'
        f" {escape(settings)}.</p>"
    )


def _parts(parts: list[dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(part['what'])}</td>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in part_cells(part))
        + "</tr>"
        for part in parts
    )
    head = "".join(f"<th>{name}</th>" for name in ("measured", *PART_COLUMNS))
    return f"<table><tr>{head}</tr>{rows}</table>"
