# SPDX-License-Identifier: Apache-2.0
"""The plot that most notebooks of the course use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes


def seeds(axes: Axes, groups: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw one dot per seed and a line at the mean, for each group of runs.

    Args:
        axes: where to draw.
        groups: values of the runs, by the name of their setting.
        label: what the values are.
    """
    for place, values in enumerate(groups.values()):
        axes.plot([place] * len(values), values, "o", color=f"C{place}", alpha=0.6, clip_on=False)
        axes.hlines(np.mean(values), place - 0.3, place + 0.3, color=f"C{place}", linewidth=3)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
