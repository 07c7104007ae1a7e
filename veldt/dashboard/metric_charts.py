# SPDX-License-Identifier: Apache-2.0
"""Charts of what metrics.jsonl has by name: losses, entropy, gradients, lengths, the machine, and
what environments tell of themselves and are told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from veldt.dashboard.charts import LABEL, Options, chart, line
from veldt.dashboard.reading import Point, RunView

COLOURS = ("#2f9e6e", "#4c7fd1", "#d98a3d", "#a65fc0", "#c8473b", "#3aa6b9", "#8a6d3b", "#7a8791")
LEGEND = {"top": 0, "type": "scroll", "textStyle": LABEL, "itemHeight": 8, "itemWidth": 14}


@dataclass(frozen=True)
class MetricChart:
    """Every metric whose name matches, a line each; what the pattern captures is its name."""

    title: str
    pattern: re.Pattern[str]
    of_q: re.Pattern[str] | None = None
    """Instead, where Q values are learned: "loss.value" is their mean there, and no loss."""

    def pattern_among(self, known: Mapping[str, float]) -> re.Pattern[str]:
        return self.of_q if self.of_q is not None and _TD in known else self.pattern

    def options(self, view: RunView) -> Options | None:
        """The chart; None where the run has no such metric."""
        known = view.curve[-1].metrics if view.curve else {}
        pattern = self.pattern_among(known)
        matches = [match for match in map(pattern.fullmatch, known) if match]
        lines = [
            line(_words(match[1]), points_of(view.curve, _named(match[0])), colour)
            for match, colour in zip(matches, COLOURS, strict=False)
        ]
        return named_lines(lines, "env steps") if lines else None


_TD, _NOTHING = "counter/loss.td", re.compile(r"(?!)()")
METRIC_CHARTS = (
    MetricChart(
        "Loss",
        re.compile(r"counter/loss\.(policy|value)"),
        re.compile(r"counter/loss\.(q|critic)"),
    ),
    MetricChart("TD error and estimated value", _NOTHING, re.compile(r"counter/loss\.(td|value)")),
    MetricChart("Entropy of the policy", re.compile(r"counter/loss\.(entropy)")),
    MetricChart("Gradient norm", re.compile(r"counter/((?:\w+\.)*gradient_norm)")),
    MetricChart("Episode length: mean of the last 100", re.compile(r"return/(mean_length)_100")),
    MetricChart("CPU, memory and GPU: percent in use", re.compile(r"system/(.+)_percent")),
    MetricChart("Told by the environment at the end of episodes", re.compile(r"info/(.+)")),
    MetricChart("Told to the environments", re.compile(r"environment/(.+)")),
)
"""In the order of the page."""


def metric_of(title: str, last: bool = False) -> Callable[[Point], float | None]:
    """The one number of a chart, for a page with a line per run: the first that it would draw, or
    the last."""
    chosen = next(each for each in METRIC_CHARTS if each.title == title)

    def value(point: Point) -> float | None:
        names = filter(chosen.pattern_among(point.metrics).fullmatch, point.metrics)
        found = [point.metrics[name] for name in names]
        return found[-1 if last else 0] if found else None

    return value


def _named(name: str) -> Callable[[Point], float | None]:
    return lambda point: point.metrics.get(name)


def points_of(curve: Sequence[Point], value: Callable[[Point], float | None]) -> list[list[float]]:
    """Pairs of env steps and a value, where there is one."""
    pairs = ((point.env_steps, value(point)) for point in curve)
    return [[steps, float(f"{found:.5g}")] for steps, found in pairs if found is not None]


def named_lines(lines: list[Options], x_name: str) -> Options:
    """Several lines with their names above them."""
    options = chart(lines, x_name=x_name, scale=True)
    options["grid"] |= {"top": 30}
    return {**options, "legend": LEGEND}


def sizes(view: RunView) -> dict[str, str]:
    """How large everything is, in the words of the options."""
    chosen: Mapping[str, object] = view.config.get("chosen", {})
    own: Mapping[str, object] = view.config.get("config", {})
    wanted = (
        *("num_actors", "envs_per_actor", "rows_per_update", "trajectory_steps", "batch_size"),
        *("batch_trajectories", "replay_transitions", "num_learners", "num_policies"),
    )
    found = {name: chosen.get(name, own.get(name)) for name in wanted}
    found["weights"] = view.config.get("parameters")
    queues = view.topology.get("channels", {})
    found |= {f"slots of {name}": each["slots"] for name, each in queues.items() if "slots" in each}
    return {_words(n): f"{v:,}" if isinstance(v, int) else str(v) for n, v in found.items() if v}


def _words(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")
