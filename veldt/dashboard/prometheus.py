# SPDX-License-Identifier: Apache-2.0
"""The newest metrics of runs in Prometheus's text format."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from veldt.dashboard.reading import RunView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTED = ("env_steps", "updates", "episodes")
_FAMILIES = ("info", "environment", "queue", "busy", "counter")
"""Metrics "family/name" whose names depend on the run: the name becomes a label."""
Samples = dict[str, list[tuple[dict[str, Any], float]]]


def exposition(runs: Iterable[tuple[RunView, Path]]) -> str:
    """One gauge or counter per metric, with the run as labels."""
    samples: Samples = {}
    runs = list(runs)
    times = Counter(run_dir.name for _, run_dir in runs)
    for view, run_dir in runs:
        # Two runs must not be one: Prometheus would refuse all of both.
        _add(samples, view, run_dir.name if times[run_dir.name] == 1 else str(run_dir))
    lines = []
    for name, found in samples.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{{{_written(own)}}} {value!r}" for own, value in found]
    return "\n".join(lines) + "\n"


def _add(samples: Samples, view: RunView, run: str) -> None:
    labels = {
        "run": run,
        "architecture": view.config["architecture"],
        "env": view.option("env"),
        "seed": view.option("seed"),
    }
    is_up = float(view.state in ("starting", "running"))
    samples.setdefault("veldt_up", []).append((labels, is_up))
    for metric, value in view.latest.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        name, more = _named(metric)
        samples.setdefault(name, []).append(({**labels, **more}, float(value)))


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
