# SPDX-License-Identifier: Apache-2.0
"""A table of what environments said at the ends of episodes, and of what they were told."""

from __future__ import annotations

from html import escape

from veldt.dashboard.reading import RunView
from veldt.telemetry.progress import number

_FAMILIES = {"info/": "said", "environment/": "told"}


def has_episode_info(view: RunView) -> bool:
    return any(name.startswith(tuple(_FAMILIES)) for name in view.latest)


def table(view: RunView) -> str:
    """A row for each name; empty where there is none."""
    rows = [
        f'<tr data-info="{escape(name)}"><td>{escape(name.removeprefix(family))}</td><td>{word}'
        f"</td><td>{number(value)}</td></tr>"
        for family, word in _FAMILIES.items()
        for name, value in view.latest.items()
        if name.startswith(family)
    ]
    head = "<tr><th>name</th><th></th><th>value</th></tr>"
    return f'<table class="roles">{head}{"".join(rows)}</table>' if rows else ""
