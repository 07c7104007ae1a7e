# SPDX-License-Identifier: Apache-2.0
"""What the figures of claims are made of: bars and lines over seeds, with intervals and every seed
as a dot. Axes are matplotlib's; nothing is imported here, so a claim can be judged without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from veldt.compare.statistics import estimate


def bars(axis: Any, groups: Mapping[str, np.ndarray], label: str) -> None:
    """A bar per group: interquartile mean, its interval, and a dot per seed."""
    for place, numbers in enumerate(groups.values()):
        known = numbers[np.isfinite(numbers)]
        if not known.size:
            continue
        found = estimate(known)
        spread = np.maximum([[found.value - found.low], [found.high - found.value]], 0.0)
        axis.bar(place, found.value, color=f"C{place}", alpha=0.6, yerr=spread, capsize=4)
        axis.plot([place] * known.size, known, "k.", markersize=4)
    axis.set_xticks(range(len(groups)), list(groups), fontsize="small")
    axis.set_ylabel(label)
    _tidy(axis)


def lines(
    axis: Any, x: Sequence[float], groups: Mapping[str, np.ndarray], names: tuple[str, str]
) -> None:
    """A line per group from values [len(x), seeds], with its interval as a band; `names` are those
    of the axes."""
    for number, (label, numbers) in enumerate(groups.items()):
        found, colour = estimate(numbers), f"C{number}"
        axis.plot(x, found.value, "o-", color=colour, label=label, markersize=3)
        axis.fill_between(x, found.low, found.high, color=colour, alpha=0.2, linewidth=0)
        for seed in np.asarray(numbers).T:
            axis.plot(x, seed, ".", color=colour, markersize=2, alpha=0.5)
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    axis.legend(fontsize="small")
    _tidy(axis)


def curves(
    axis: Any, groups: Mapping[str, list[dict[str, Any]]], over: str, key: str, names: Any
) -> None:
    """`lines` from rows that hold "points"; seeds are taken at the same points."""
    shown = {
        label: np.array([[point[key] for point in row["points"]] for row in rows]).T
        for label, rows in groups.items()
        if rows
    }
    first = next(iter(groups.values()))[0]["points"]
    lines(axis, [point[over] for point in first], shown, names)


def bound(axis: Any, value: float, label: str) -> None:
    """The bound of the claim's rule."""
    axis.axhline(value, color="black", linestyle="--", linewidth=1)
    axis.annotate(label, (1.0, value), xycoords=("axes fraction", "data"), fontsize="x-small")


def _tidy(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
