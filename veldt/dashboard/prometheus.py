# SPDX-License-Identifier: Apache-2.0
"""A run's newest metrics in Prometheus's text format."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from veldt.dashboard.reading import RunView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTED = ("env_steps", "updates", "episodes")
_FAMILIES = ("info", "environment", "queue", "busy", "counter")
"""Metrics "family/name" whose names depend on the run: the name becomes a label."""


def exposition(view: RunView, run_dir: Path) -> str:
    """One gauge or counter per metric, with the run as labels."""
    labels = {
        "run": run_dir.name,
        "architecture": view.config["architecture"],
        "env": view.option("env"),
        "seed": view.option("seed"),
    }
    samples: dict[str, list[tuple[dict[str, Any], float]]] = {
        "veldt_up": [(labels, float(view.state in ("starting", "running")))]
    }
    for metric, value in view.latest.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        name, more = _named(metric)
        samples.setdefault(name, []).append(({**labels, **more}, float(value)))
    lines = []
    for name, found in samples.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{{{_written(own)}}} {value!r}" for own, value in found]
    return "\n".join(lines) + "\n"


def _named(metric: str) -> tuple[str, dict[str, str]]:
    if metric == "time":
        return "veldt_reported_timestamp_seconds", {}
    if metric in _COUNTED:
        return f"veldt_{metric}_total", {}
    family, _, name = metric.partition("/")
    if family in _FAMILIES:
        return f"veldt_{family}", {"name": name}
    return "veldt_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric), {}


def _written(labels: dict[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
