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


_KEPT = {"bound": 0.0, "matters": 0.0}
SENTENCES = (
    Sentence("PPO's clip falls behind from staleness 1 to 4", "AReaL",
             "`clip`: 0 minus 4", loss("clip", 4), ("clip",)),
    Sentence("Decoupled PPO keeps its score up to staleness 4", "AReaL",
             "`decoupled`: 4 minus 90% of 0", kept("decoupled", 4), ("decoupled",), **_KEPT),
    Sentence("Under staleness decoupled PPO is better than PPO", "AReaL",
             "`decoupled` minus `clip`, 4 to 16", gain("decoupled", "clip", 4, 8, 16),
             ("decoupled", "clip")),
    Sentence("Truncated importance sampling prevents collapse", "TIS",
             "`tis` minus `none`, 8 to 64", gain("tis", "none", 8, 16, 32, 64),
             ("tis", "none")),
    Sentence("Masking ratios outside a band prevents collapse", "IcePop",
             "`icepop` minus `none`, 8 to 64", gain("icepop", "none", 8, 16, 32, 64),
             ("icepop", "none")),
    Sentence("M2PO is stable with data 256 updates old", "M2PO",
             "`m2po`: 256 minus 90% of 0", kept("m2po", 256), ("m2po",), **_KEPT),
    Sentence("Rates scaled by the ESS are stable 128 updates off-policy", "VCPO",
             "`ess`: 64 (half of that) minus 90% of 0", kept("ess", 64), ("ess",), **_KEPT),
    Sentence("The scaled rate is what helps", "VCPO",
             "`ess` minus `vtrace`, 16 to 256", gain("ess", "vtrace", 16, 32, 64, 256),
             ("ess", "vtrace")),
    Sentence("A staleness of 8 versions slows learning significantly", "OpenAI Five",
             "`clip`: 0 minus 8", loss("clip", 8), ("clip",)),
    Sentence("V-trace is better than one-step correction", "IMPALA",
             "`vtrace` minus `one_step`, 4 to 64", gain("vtrace", "one_step", 4, 8, 16, 32, 64),
             ("vtrace", "one_step")),
    Sentence("V-trace is better than no correction", "IMPALA",
             "`vtrace` minus `none`, 4 to 64", gain("vtrace", "none", 4, 8, 16, 32, 64),
             ("vtrace", "none")),
    Sentence("Dropping rows beyond 8 versions protects learning", "prime-rl",
             "`drop` minus `none`, 16 to 64", gain("drop", "none", 16, 32, 64),
             ("drop", "none")),
)  # fmt: skip


BANDS = {"0": (0,), "1 to 8": (1, 2, 4, 8), "16 to 64": (16, 32, 64), "256": (256,)}


def tables(atlas: Atlas) -> str:
    lines = [
        f"{len(atlas.seeds)} seeds per cell, of {len(atlas.corrections)} corrections,"
        f" {len(LAGS)} lags and {len(TASKS)} tasks:"
        f" {len(atlas.seeds) * len(atlas.corrections) * len(LAGS) * len(TASKS):,} runs.",
        "",
        "By task, the largest lag that leaves 90% of the correction's own score without lag (*: a"
        " smaller one leaves less); then the mean score of the tasks.",
        "",
        "| correction | " + " | ".join((*TASKS, *(f"lag {band}" for band in BANDS))) + " |",
        "|---|" + "---|" * (len(TASKS) + len(BANDS)),
    ]
    for name in atlas.corrections:
        cells = [atlas.tolerated(task, name) for task in TASKS]
        cells += [f"{middle(atlas.score(name, *lags)):.2f}" for lags in BANDS.values()]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        *reading(atlas),
        "",
        "| published sentence | scores at these lags | verdict |",
        "|---|---|---|",
    ]
    for sentence in SENTENCES:
        if found := sentence.verdict(atlas):
            outcome, number = found
            measured = (
                f"{number.what}: {number.value:+.2f} ({number.low:+.2f} to {number.high:+.2f})"
            )
            lines.append(f"| {sentence.text} ({sentence.source}) | {measured} | **{outcome}** |")
    lines.append("")
    for task in TASKS:
        lines += [f"![{task}: score, KL and effective sample size over lag](images/lag_{task}.png)"]
    return "\n".join(lines)


def middle(values: np.ndarray) -> float:
    return Criterion.over_seeds("", values, 0.0).value


def reading(atlas: Atlas) -> list[str]:
    """What lag costs, what helps and what to choose, in sentences that follow from the rows."""
    costs = [
        f"{middle(np.mean([atlas.scores(t, 'none', lag) for lag in BANDS['1 to 8']], axis=0)):.2f}"
        f" on {t}"
        for t in TASKS
    ]
    near, far = (leaders(atlas, *BANDS[band]) for band in ("1 to 8", "16 to 64"))
    both = [name for name in near if name in far]
    advice = listed(both) if both else f"{listed(near)} at lags up to 8, {listed(far)} above"
    best = (
        max(middle(atlas.score(c, *lags)) for c in atlas.corrections) for lags in BANDS.values()
    )
    ranks = [
        ", ".join(f"{correlation(atlas, task, key):+.2f} on {task}" for task in TASKS)
        for key in ("lag", "kl")
    ]
    return [
        f"- **What it costs.** Without a correction the mean score over lags 1 to 8 is"
        f" {', '.join(costs)}. The best correction of each band of lags has"
        f" {' / '.join(f'{value:.2f}' for value in best)}.",
        f"- **What does harm.** Over all cells, the rank correlation of the score with lag is"
        f" {ranks[0]}; with KL it is {ranks[1]}.",
        f"- **What helps.** Over lags 1 to 8 the highest scores are those of {listed(near)}, over"
        f" 16 to 64 those of {listed(far)} (the intervals of"
        " their differences to all others lie above 0).",
        f"- **What to choose.** First bound lag (`--eta`). Then use {advice}.",
    ]


def leaders(atlas: Atlas, *lags: int) -> list[str]:
    """The best correction over these lags, and those that are not clearly worse."""
    scores = {name: atlas.score(name, *lags) for name in atlas.corrections}
    ranked = sorted(scores, key=lambda name: -middle(scores[name]))
    losses = {name: scores[ranked[0]] - scores[name] for name in ranked[1:]}
    close = [n for n, lost in losses.items() if Criterion.over_seeds("", lost, 0.0).low <= 0.0]
    return [ranked[0], *close]


def listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def correlation(atlas: Atlas, task: str, key: str) -> float:
    """Of the ranks of score and lag, or of score and a measurement, over the cells of a task."""
    cells = [(name, lag) for name in atlas.corrections for lag in LAGS]
    scores = [atlas.scores(task, *cell).mean() for cell in cells]
    other = [
        cell[1] if key == "lag" else np.nanmean(atlas.values(task, *cell, key)) for cell in cells
    ]
    with np.errstate(invalid="ignore"):  # equal scores have no correlation
        return float(np.corrcoef(_ranks(scores), _ranks(other))[0, 1])


def _ranks(values: Any) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    ordered = np.sort(values)
    first, last = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (first + last - 1) / 2


def draw(atlas: Atlas, task: str, file: Path) -> None:
    """Scores of each family of corrections over lag, with intervals, and what lag does to rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {name: f"C{index}" for index, name in enumerate(CORRECTIONS)}
    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6), constrained_layout=True)
    axes, places = grid.ravel(), np.arange(len(LAGS))
    for axis, family in zip(axes, FAMILIES, strict=False):
        names = [each for each in family if each in atlas.corrections]
        for name in names:
            found = [estimate(atlas.scores(task, name, lag)) for lag in LAGS]
            middle, low, high = (
                np.array([getattr(each, key) for each in found]) for key in ("value", "low", "high")
            )
            axis.plot(places, middle, "o-", color=colors[name], markersize=4)
            axis.fill_between(places, low, high, color=colors[name], alpha=0.15, linewidth=0)
        axis.set(ylim=(-0.05, 1.25), ylabel="score", title="score: " + ", ".join(names))
    for axis, key in zip(axes[3:], ("kl", "ess"), strict=False):
        for name in atlas.corrections:
            values = [np.nanmean(atlas.values(task, name, lag, key)) for lag in LAGS]
            axis.plot(places, values, "-", color=colors[name], label=name)
    axes[3].set(yscale="log", ylim=(1e-5, 1e3), title="KL(behaviour || learner)")
    axes[4].set(ylim=(0, 1.05), title="effective share of the rows")
    for axis in axes[:5]:
        axis.set_xticks(places, [str(lag) for lag in LAGS])
        axis.set_xlabel("lag (updates)")
        axis.spines[["top", "right"]].set_visible(False)
    axes[5].axis("off")
    axes[5].legend(*axes[4].get_legend_handles_labels(), loc="center", title="correction", ncols=2)
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
