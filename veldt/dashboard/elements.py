# SPDX-License-Identifier: Apache-2.0
"""What the pages are made from: boxes, cards with a title, and their style."""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def add_styles() -> None:
    ui.add_css(_STYLE)


def div(classes: str) -> ui.element:
    return ui.element("div").classes(classes)


def card(title: str, classes: str) -> ui.element:
    made = div(f"card {classes}")
    with made:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return made
