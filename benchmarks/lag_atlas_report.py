# SPDX-License-Identifier: Apache-2.0
"""The lag atlas in docs/lag.md: a figure per task, the table of tolerated lags, and verdicts.

python benchmarks/lag_atlas_report.py
Scores are returns on a scale from 0 (a random policy, or worse) to 1 (the best without lag).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from claims.claim import Criterion
from lag_atlas import (
    CORRECTIONS,
    LAGS,
    RESULTS,
    ROOT,
    TASKS,
    load,
)

from veldt.compare.statistics import estimate

PAGE = ROOT / "docs/lag.md"
FIGURES = ROOT / "docs/images"
BEGIN, END = "<!-- atlas:begin -->", "<!-- atlas:end -->"
KEPT = 0.9
"""Share of the score without lag that a tolerated lag leaves."""
MATTERS = 0.1
"""The least difference of scores that matters."""
FAMILIES = (
    ("none", "one_step", "vtrace", "drop"),
    ("vtrace", "tis", "decoupled", "icepop"),
    ("vtrace", "clip", "m2po", "ess"),
)


class Atlas:
    """Scores and measurements by task, correction, lag and seed; only seeds that all cells have."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        cells: dict[tuple[str, str, int], dict[int, dict[str, Any]]] = {}
        for row in rows:
            cell = cells.setdefault((row["task"], row["correction"], row["lag"]), {})
            cell[row["seed"]] = row
        wanted = [(t, c, lag) for t in TASKS for c in CORRECTIONS for lag in LAGS]
        self.corrections = [
            c for c in CORRECTIONS if all(key in cells for key in wanted if key[1] == c)
        ]
        shown = [key for key in wanted if key[1] in self.corrections]
        self.seeds = sorted(set.intersection(*(set(cells[key]) for key in shown)))
        self._rows = {key: [cells[key][seed] for seed in self.seeds] for key in shown}
        self._best = {
            task: max(
                float(estimate(self.values(task, c, 0, "return")).value) for c in self.corrections
            )
            for task in TASKS
        }

    def values(self, task: str, correction: str, lag: int, key: str) -> np.ndarray:
        """One number per seed; what a failed run has not measured is NaN."""
        rows = self._rows[task, correction, lag]
        return np.array([row.get(key, np.nan) for row in rows], np.float64)

    def scores(self, task: str, correction: str, lag: int) -> np.ndarray:
        chance = TASKS[task].chance
        returns = self.values(task, correction, lag, "return")
        return np.maximum((returns - chance) / (self._best[task] - chance), 0.0)

    def score(self, correction: str, *lags: int) -> np.ndarray:
        """Mean over tasks and lags, one per seed."""
        return np.mean([self.scores(t, correction, lag) for t in TASKS for lag in lags], axis=0)

    def tolerated(self, task: str, correction: str) -> str:
        """The largest lag with 90% of the score without; a star where a smaller one has less."""
        found = [float(estimate(self.scores(task, correction, lag)).value) for lag in LAGS]
        kept = [score >= KEPT * found[0] for score in found]
        largest = max(index for index, enough in enumerate(kept) if enough)
        return f"{LAGS[largest]}{'' if all(kept[: largest + 1]) else '*'}"


@dataclass(frozen=True)
class Sentence:
    """A published sentence, and the number that decides whether it holds here."""

    text: str
    source: str
    number: str
    rule: Callable[[Atlas], np.ndarray]
    """The number, one per seed."""
    needs: tuple[str, ...]
    bound: float = 0.0
    matters: float = MATTERS

    def verdict(self, atlas: Atlas) -> tuple[str, Criterion] | None:
        if not set(self.needs) <= set(atlas.corrections):
            return None
        found = Criterion.over_seeds(
            self.number, self.rule(atlas), self.bound, matters=self.matters
        )
        return found.outcome, found


def loss(correction: str, *lags: int) -> Callable[[Atlas], np.ndarray]:
    return lambda atlas: atlas.score(correction, 0) - atlas.score(correction, *lags)


def gain(correction: str, other: str, *lags: int) -> Callable[[Atlas], np.ndarray]:
    return lambda atlas: atlas.score(correction, *lags) - atlas.score(other, *lags)


def kept(correction: str, lag: int) -> Callable[[Atlas], np.ndarray]:
    return lambda atlas: atlas.score(correction, lag) - KEPT * atlas.score(correction, 0)


_AREAL, _IMPALA = "Fu et al., 2025 (AReaL)", "Espeholt et al., 2018 (IMPALA)"
_KEPT = {"bound": 0.0, "matters": 0.0}
SENTENCES = (
    Sentence("PPO's clip to the behaviour policy falls behind from staleness 1 to 4", _AREAL,
             "clip: score at lag 0 minus at 4", loss("clip", 4), ("clip",)),
    Sentence("Decoupled PPO keeps its score up to staleness 4", _AREAL,
             "decoupled: score at lag 4 minus 90% of that at 0", kept("decoupled", 4),
             ("decoupled",), **_KEPT),
    Sentence("Under staleness decoupled PPO is better than PPO", _AREAL,
             "decoupled minus clip at lags 4, 8 and 16", gain("decoupled", "clip", 4, 8, 16),
             ("decoupled", "clip")),
    Sentence("Truncated importance sampling prevents collapse", "Yao et al., 2025 (TIS)",
             "tis minus none at lags 8 to 64", gain("tis", "none", 8, 16, 32, 64),
             ("tis", "none")),
    Sentence("Masking rows with ratios outside a band prevents collapse",
             "Ling Team, 2025 (IcePop)", "icepop minus none at lags 8 to 64",
             gain("icepop", "none", 8, 16, 32, 64), ("icepop", "none")),
    Sentence("M2PO is stable with data that is 256 updates old", "Zheng et al., 2025 (M2PO)",
             "m2po: score at lag 256 minus 90% of that at 0", kept("m2po", 256),
             ("m2po",), **_KEPT),
    Sentence("Scaling the rate by the effective sample size is stable at a lag of 128",
             "VCPO, 2026", "ess: score at lag 64, half of that, minus 90% of that at 0",
             kept("ess", 64), ("ess",), **_KEPT),
    Sentence("The scaled rate is what helps", "VCPO, 2026",
             "ess minus vtrace, which has the same weights, at lags 16 to 256",
             gain("ess", "vtrace", 16, 32, 64, 256), ("ess", "vtrace")),
    Sentence("A staleness of 8 versions slows learning significantly", "OpenAI Five, 2019",
             "clip: score at lag 0 minus at 8", loss("clip", 8), ("clip",)),
    Sentence("V-trace is better than the one-step correction under lag", _IMPALA,
             "vtrace minus one_step at lags 4 to 64", gain("vtrace", "one_step", 4, 8, 16, 32, 64),
             ("vtrace", "one_step")),
    Sentence("V-trace is better than no correction under lag", _IMPALA,
             "vtrace minus none at lags 4 to 64", gain("vtrace", "none", 4, 8, 16, 32, 64),
             ("vtrace", "none")),
    Sentence("Dropping rows beyond 8 versions protects learning", "prime-rl, 2025",
             "drop minus none at lags 16 to 64", gain("drop", "none", 16, 32, 64),
             ("drop", "none")),
)  # fmt: skip


def tables(atlas: Atlas) -> str:
    lines = [
        f"{len(atlas.seeds)} seeds per cell, of {len(atlas.corrections)} corrections,"
        f" {len(LAGS)} lags and {len(TASKS)} tasks:"
        f" {len(atlas.seeds) * len(atlas.corrections) * len(LAGS) * len(TASKS):,} runs.",
        "",
        "**Largest lag with at least 90% of the correction's own score without lag** (updates;"
        " a star: a smaller lag has less).",
        "",
        "| correction | "
        + " | ".join(f"{task}: score at 0 | largest lag" for task in TASKS)
        + " |",
        "|---|" + "---|" * 2 * len(TASKS),
    ]
    for name in atlas.corrections:
        cells = [
            f"{float(estimate(atlas.scores(task, name, 0)).value):.2f}"
            f" | {atlas.tolerated(task, name)}"
            for task in TASKS
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += ["", "| sentence | source | here | verdict |", "|---|---|---|---|"]
    for sentence in SENTENCES:
        if found := sentence.verdict(atlas):
            outcome, number = found
            measured = f"{number.what}: {number.value:+.2f} [{number.low:+.2f}, {number.high:+.2f}]"
            lines.append(f"| {sentence.text} | {sentence.source} | {measured} | **{outcome}** |")
    lines.append("")
    for task in TASKS:
        lines += [f"![{task}: score, KL and effective sample size over lag](images/lag_{task}.png)"]
    return "\n".join(lines)


def draw(atlas: Atlas, task: str, file: Path) -> None:
    """Scores of each family of corrections over lag, with intervals, and what lag does to rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {name: f"C{index}" for index, name in enumerate(CORRECTIONS)}
    figure, axes = pyplot.subplots(1, 5, figsize=(15, 3.2), constrained_layout=True)
    places, ticks = np.arange(len(LAGS)), [str(lag) for lag in LAGS]
    for axis, family in zip(axes, FAMILIES, strict=False):
        for name in (each for each in family if each in atlas.corrections):
            found = [estimate(atlas.scores(task, name, lag)) for lag in LAGS]
            middle, low, high = (
                np.array([getattr(each, key) for each in found]) for key in ("value", "low", "high")
            )
            axis.plot(places, middle, "o-", color=colors[name], label=name, markersize=3)
            axis.fill_between(places, low, high, color=colors[name], alpha=0.15, linewidth=0)
        axis.set_ylim(-0.05, 1.25)
        axis.legend(fontsize="small", loc="lower left")
    for axis, key in zip(axes[3:], ("kl", "ess"), strict=True):
        for name in atlas.corrections:
            values = [np.nanmean(atlas.values(task, name, lag, key)) for lag in LAGS]
            axis.plot(places, values, "-", color=colors[name], linewidth=1)
    axes[0].set_ylabel("score (0: random, 1: best without lag)")
    axes[3].set(yscale="log", ylim=(1e-5, 1e3), title="KL(behaviour || learner)")
    axes[4].set(ylim=(0, 1.05), title="effective share of rows")
    for axis in axes:
        axis.set_xticks(places, ticks)
        axis.set_xlabel("lag (updates)")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(task)
    figure.savefig(file, dpi=80)
    pyplot.close(figure)


def main() -> None:
    atlas = Atlas(load(RESULTS))
    for task in TASKS:
        draw(atlas, task, FIGURES / f"lag_{task}.png")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n{tables(atlas)}\n{END}{rest.split(END)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
