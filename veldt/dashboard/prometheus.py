# SPDX-License-Identifier: Apache-2.0
"""The newest metrics of runs for Prometheus."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veldt.dashboard.reading import RunView

_LABELS = ("run", "architecture", "env", "seed")
_COUNTED = ("env_steps", "updates", "episodes")
_FAMILIES = ("info", "environment", "queue", "busy", "counter")
"""Metrics "family/name" whose names depend on the run: the name becomes a label."""


def exposition(runs: Iterable[tuple[RunView, Path]]) -> bytes:
    """The text format: one gauge or counter per metric, with the run as labels."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(list(runs)))
    return generate_latest(registry)


class _Runs(Collector):
    def __init__(self, runs: list[tuple[RunView, Path]]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        names = Counter(run_dir.name for _, run_dir in self._runs)
        for view, run_dir in self._runs:
            # Prometheus refuses two runs of the same name, so those get their whole path.
            run = run_dir.name if names[run_dir.name] == 1 else str(run_dir)
            labels = [run, view.config["architecture"], view.option("env"), view.option("seed")]
            for name, label, value in _samples(view):
                more = [] if label is None else [label]
                family = families.setdefault(name, _family(name, label is not None))
                family.add_metric([*map(str, labels), *more], value)  # type: ignore[attr-defined]
        yield from families.values()


def _family(name: str, is_named: bool) -> Metric:
    kind = CounterMetricFamily if name.removeprefix("veldt_") in _COUNTED else GaugeMetricFamily
    return kind(name, name, labels=[*_LABELS, "name"] if is_named else _LABELS)


def _samples(view: RunView) -> Iterator[tuple[str, str | None, float]]:
    """Name, value of the label `name` if there is one, and value."""
    yield "veldt_up", None, float(view.state in ("starting", "running"))
    for metric, value in view.latest.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        family, _, name = metric.partition("/")
        if metric == "time":
            yield "veldt_reported_timestamp_seconds", None, value
        elif family in _FAMILIES:
            yield f"veldt_{family}", name, value
        else:
            yield "veldt_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric), None, value
