# SPDX-License-Identifier: Apache-2.0
"""The figure of the contest with other frameworks: docs/peers.png."""

from __future__ import annotations

import math
from pathlib import Path

from peers_report import Document, label


def draw(document: Document, path: Path) -> None:
    """Trained steps/s on both environments and time to score, ours in one colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    medians = document["medians"]
    panels = [(env, "steps_per_second", "trained steps/s") for env in medians]
    panels += [("CartPole-v1", "seconds_to_target", "seconds to 475, confirmed")]
    panels = [p for p in panels if any(e[p[1]] for e in medians.get(p[0], {}).values())]
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.8), squeeze=False)
    for axis, (env, key, text) in zip(axes[0], panels, strict=True):
        known = {n: e[key] for n, e in medians[env].items() if e[key]}
        order = sorted(known, key=lambda n: known[n], reverse=key == "seconds_to_target")
        colours = ["#1f6f5c" if n.startswith("veldt ") else "#b8b4aa" for n in order]
        bars = axis.barh([label(n) for n in order], [known[n] for n in order], color=colours)
        digits = 1 if key == "seconds_to_target" else 0
        axis.bar_label(bars, [f"{known[n]:,.{digits}f}" for n in order], padding=3, fontsize=8)
        axis.set_xscale("log")
        left = 10.0 ** math.floor(math.log10(min(known.values()) / 1.5))  # a bar needs some length
        axis.set_xlim(left, 3.5 * max(known.values()))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"{env}: {text}", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
