# SPDX-License-Identifier: Apache-2.0
"""A topology as text, as Mermaid, as plain data and as an SVG. Made from the real wiring, so it
cannot lie."""

from __future__ import annotations

from veldt.diagram.description import describe, stem
from veldt.diagram.text import mermaid, text
from veldt.topology import Topology

__all__ = ["describe", "drawing", "mermaid", "stem", "text"]


def drawing(topology: Topology, format: str) -> str:
    """The diagram in one of the formats of `veldt describe`."""
    formats = {"text": text, "mermaid": mermaid}
    if format not in formats:
        raise ValueError(f"unknown format '{format}'; use {' or '.join(formats)}")
    return formats[format](topology)
