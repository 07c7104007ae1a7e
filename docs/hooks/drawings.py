# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: Mermaid's fences become pictures while the site is built, so that no reader's
browser has to fetch a library. In the repository they stay Mermaid, which code hosts draw."""

from __future__ import annotations

import re
from html import escape
from pathlib import PurePosixPath
from typing import Any

from veldt.architectures import ARCHITECTURES
from veldt.diagram import describe
from veldt.diagram.svg import STYLE, Diagram
from veldt.options import RunOptions
from veldt.run.plan import make_plan

_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_EDGE = re.compile(r'^\s*(\w+)\["([^"]+)"\] -->\|([^|]+)\| (\w+)\["([^"]+)"\]$')
_ROW, _INDENT, _BOX, _LETTER = 46, 34, 30, 8.6


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    name = PurePosixPath(page.file.src_uri).stem

    def picture(found: re.Match[str]) -> str:
        drawn = tree(found[1]) if found[1].startswith("graph TD") else topology(name)
        return f'<figure class="drawing">{drawn}</figure>'

    return _FENCE.sub(picture, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    if 'class="topology"' not in output:
        return output
    return output.replace("</head>", f"<style>{STYLE}</style></head>", 1)


def topology(name: str) -> str:
    """The wiring of the architecture that a page is about, as `veldt describe` has it."""
    assert name in ARCHITECTURES, f"{name}: only pages of architectures and trees can be drawn"
    env = ARCHITECTURES[name].example_env
    plan = make_plan(name, RunOptions(env=env, backend="serial", device="cpu"), {})
    return Diagram(describe(plan.topology)).svg()


def tree(text: str) -> str:
    """A graph in which each node has one parent: a row for each, with what its edge says."""
    titles, children, changes = dict[str, str](), dict[str, list[str]](), dict[str, str]()
    for line in text.splitlines()[1:]:
        edge = _EDGE.match(line)
        assert edge, f"not an edge of a tree: {line}"
        old, old_title, change, new, new_title = edge.groups()
        titles |= {old: old_title, new: new_title}
        assert new not in changes, f"{new} has two parents"
        changes[new] = change
        children.setdefault(old, []).append(new)
    root = next(name for name in titles if name not in changes)
    rows = list(_rows(root, children))
    place = {name: (depth * _INDENT, number * _ROW) for number, (name, depth) in enumerate(rows)}
    parts = [_line(place[old], place[new]) for old in children for new in children[old]]
    parts += [_node(titles[name], changes.get(name, ""), *place[name]) for name, _ in rows]
    width = max(_width(titles[n]) + 20 + place[n][0] + 7.2 * len(changes.get(n, "")) for n in place)
    return (
        f'<svg class="lineage" viewBox="0 0 {width:.0f} {_ROW * len(rows)}"'
        f' style="max-width:{width:.0f}px" role="img" aria-label="lineage">{"".join(parts)}</svg>'
    )


def _rows(name: str, children: dict[str, list[str]], depth: int = 0) -> Any:
    yield name, depth
    for child in children.get(name, ()):
        yield from _rows(child, children, depth + 1)


def _width(title: str) -> float:
    return 20 + _LETTER * len(title)


def _node(title: str, change: str, x: float, y: float) -> str:
    width, middle = _width(title), y + _ROW / 2
    return (
        f'<rect x="{x + 1}" y="{middle - _BOX / 2}" width="{width}" height="{_BOX}" rx="8"/>'
        f'<text class="title" x="{x + 11}" y="{middle + 5}">{escape(title)}</text>'
        f'<text class="change" x="{x + width + 10}" y="{middle + 4}">{escape(change)}</text>'
    )


def _line(old: tuple[float, float], new: tuple[float, float]) -> str:
    x, top = old[0] + _INDENT / 2, old[1] + (_ROW + _BOX) / 2
    return f'<path d="M{x} {top}V{new[1] + _ROW / 2}H{new[0] + 1}"/>'
