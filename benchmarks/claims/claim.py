# SPDX-License-Identifier: Apache-2.0
"""What a claim is: cases to run, and a rule that turns what they gave into a verdict.

The rule and its bounds are part of the claim's code, so they are fixed before anything is measured.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from veldt.compare.statistics import estimate

HOLDS, SMALL, DOES_NOT_HOLD = "holds", "holds, but small", "does not hold"
UNDECIDED = "undecided"
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""Two-sided 95% quantiles of Student's t with 1 to 8 degrees of freedom."""

Row = dict[str, Any]
"""One run: what was varied (its case), and what was measured."""


@dataclass(frozen=True)
class Criterion:
    """A number that decides: its interval over seeds, the bound it has to pass, what matters.

    It holds where the whole interval passes the bound; it holds, but small, where the whole
    interval also lies below what matters. It does not hold where the interval does not pass the
    bound and shows that less than what matters is left, and is undecided otherwise. A number
    without seeds is its own interval."""

    what: str
    value: float
    low: float
    high: float
    bound: float
    above: bool = True
    """Whether the number has to be above the bound, or below it."""
    matters: float | None = None
    """The least that matters, at or beyond the bound; the bound itself if it is not given."""

    @staticmethod
    def over_seeds(
        what: str,
        values: Iterable[float],
        bound: float,
        above: bool = True,
        matters: float | None = None,
    ) -> Criterion:
        """From one value per seed: interquartile mean and its bootstrap interval.

        Of fewer than 10 seeds the bootstrap covers too little: mean and Student's t interval."""
        known = np.array([value for value in values if math.isfinite(value)])
        if known.size < 2:
            return Criterion(what, math.nan, math.nan, math.nan, bound, above, matters)
        if known.size <= len(_T) + 1:
            mean, error = float(known.mean()), float(known.std(ddof=1)) / math.sqrt(known.size)
            half = _T[known.size - 2] * error
            return Criterion(what, mean, mean - half, mean + half, bound, above, matters)
        found = estimate(known)
        interval = (float(found.low), float(found.high))
        return Criterion(what, float(found.value), *interval, bound, above, matters)

    @staticmethod
    def exactly(what: str, value: float, bound: float, above: bool = True) -> Criterion:
        return Criterion(what, value, value, value, bound, above)

    @property
    def least(self) -> float:
        """The least that matters."""
        return self.bound if self.matters is None else self.matters

    @property
    def outcome(self) -> str:
        if not math.isfinite(self.value):
            return UNDECIDED
        sign = 1.0 if self.above else -1.0
        low, high = sorted((sign * self.low, sign * self.high))
        if low > sign * self.bound:
            return HOLDS if high >= sign * self.least else SMALL
        return DOES_NOT_HOLD if high <= sign * self.least else UNDECIDED


def settings(**values: Any) -> Mapping[str, Any]:
    """Values by name."""
    return MappingProxyType(values)


@dataclass(frozen=True)
class Claim(ABC):
    """An experiment. Its fields are the experiment's settings; what is fixed stands above them."""

    name: ClassVar[str]
    statement: ClassVar[str]
    paper: ClassVar[str]
    rule: ClassVar[str]
    caption: ClassVar[str]
    """What its figure shows."""
    factors: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """What is varied, beside the seed: its values, or the name of the setting that has them."""
    quick_settings: ClassVar[Mapping[str, Any]]
    """Settings of the same experiment with a budget of seconds, which decides nothing."""
    full_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings with more seeds and sizes, for those who have the time."""
    is_timed: ClassVar[bool] = True
    """Whether it measures time, so that nothing may go on beside it. Cases of the others run on all
    cores at once."""
    runs_of: ClassVar[str] = ""
    """The claim whose runs it judges, if it has none of its own."""
    needs_gpu: ClassVar[bool] = False
    """Whether it is about a CUDA device, so that there is nothing to measure without one."""

    env: str = "CartPole-v1"
    """Environment."""
    seeds: int = 5
    """Runs of each kind."""
    first_seed: int = 1
    """The seeds count on from here; others show whether a verdict lasts."""

    def kinds(self) -> list[Row]:
        """Every combination of the factors; the last one changes first."""
        values = (getattr(self, v) if isinstance(v, str) else v for v in self.factors.values())
        return [dict(zip(self.factors, each, strict=True)) for each in itertools.product(*values)]

    def cases(self) -> list[Row]:
        """Every kind with every seed; an interrupted call has each kind at least once."""
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return [{**kind, "seed": seed} for seed in seeds for kind in self.kinds()]

    @abstractmethod
    def measure(self, case: Row) -> Row:
        """Run one case; plain numbers and lists by name."""

    @abstractmethod
    def judge(self, rows: list[Row]) -> list[Criterion]:
        """The numbers that decide; all must hold. Depends on nothing but `rows`."""

    @abstractmethod
    def draw(self, rows: list[Row], figure: Any) -> None:
        """Fill a matplotlib figure."""

    def notes(self, rows: list[Row]) -> list[str]:
        """What else is worth knowing; may be empty."""
        return []

    def quick(self) -> Self:
        return replace(self, **self.quick_settings)

    def full(self) -> Self:
        return replace(self, **{"seeds": 2 * self.seeds, **self.full_settings})


@dataclass(frozen=True)
class Verdict:
    """What came out, with all that it rests on."""

    claim: Claim
    outcome: str
    parts: list[Criterion] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    figure: str = ""
    """File name of the drawing, or empty."""
    seconds: float = 0.0
    """How long all runs took, those of earlier calls included."""
    quick: bool = False
    notes: list[str] = field(default_factory=list)
    """What the numbers say beyond the rule, or why there are none."""

    @property
    def text(self) -> str:
        return f"quick: {self.outcome}" if self.quick else self.outcome

    def to_document(self) -> dict[str, Any]:
        """The entry of claims.json."""
        texts = ("name", "statement", "paper", "rule", "caption")
        own = ("outcome", "rows", "figure", "seconds", "quick", "notes")
        return {
            **{name: getattr(self.claim, name) for name in texts},
            **{name: getattr(self, name) for name in own},
            "verdict": self.text,
            "conclusion": conclusion(self.outcome, self.parts, self.claim.seeds),
            "settings": asdict(self.claim),
            "parts": [{**asdict(part), "outcome": part.outcome} for part in self.parts],
        }


def conclude(parts: list[Criterion]) -> str:
    """A claim holds if all its parts do, and does not if one of them does not."""
    outcomes = {part.outcome for part in parts}
    for outcome in (DOES_NOT_HOLD, UNDECIDED, SMALL):
        if outcome in outcomes:
            return outcome
    return HOLDS if outcomes else UNDECIDED


def conclusion(outcome: str, parts: list[Criterion], seeds: int) -> str:
    """One plain sentence: which number decided, or why none did and how many seeds would."""
    if not parts:
        return "Nothing was measured."
    part = next(each for each in parts if outcome in (each.outcome, HOLDS))
    side = "above" if part.above else "below"
    interval = "" if part.low == part.high else f" [{shown(part.low)}, {shown(part.high)}]"
    told = f"{part.what} is {shown(part.value)}{interval}"
    if outcome == HOLDS:
        count = f" ({len(parts)} numbers must hold)" if len(parts) > 1 else ""
        return f"It holds here: {told}, {side} {shown(part.bound)}{count}."
    if outcome == SMALL:
        least = f"{shown(part.least)}, the least that matters"
        return f"It holds here, but small: {told}, {side} {shown(part.bound)}, not {side} {least}."
    if outcome == DOES_NOT_HOLD:
        least = "" if part.matters is None else ", the least that matters"
        return f"It does not hold here: {told}, not {side} {shown(part.least)}{least}."
    return f"Undecided: {_why_undecided(part, told, seeds)}."


def _why_undecided(part: Criterion, told: str, seeds: int) -> str:
    if not math.isfinite(part.value):
        return f"no seed gave a value for {part.what}, and more seeds would not either"
    limits = f"the bound {shown(part.bound)}"
    if part.matters is not None:
        limits += f" or from {shown(part.matters)}, the least that matters"
    wanted = seeds_to_decide(part, seeds)
    more = f"about {wanted:,} seeds would decide it" if wanted else "no number of seeds is known"
    return f"{told}, so seeds differ too much to tell it from {limits}; {more}"


def seeds_to_decide(part: Criterion, seeds: int) -> int | None:
    """So many that the interval, which shrinks with their root, would lie on one side: beyond the
    bound, or short of the least that matters, whichever is the nearer to happen."""
    sign = 1.0 if part.above else -1.0
    distance = max(sign * (part.value - part.bound), sign * (part.least - part.value))
    half = (part.high - part.low) / 2
    if not math.isfinite(distance) or distance <= 0.0 or half == 0.0:
        return None
    return max(seeds + 1, math.ceil(1.1 * max(seeds, 2) * (half / distance) ** 2))


def select(rows: list[Row], **factors: Any) -> list[Row]:
    """The rows with these entries, ordered by seed."""
    found = [row for row in rows if all(row[name] == value for name, value in factors.items())]
    return sorted(found, key=lambda row: row["seed"])


def values(rows: list[Row], key: str, **factors: Any) -> np.ndarray:
    """One value per seed; NaN where it is not known."""
    found = [row.get(key) for row in select(rows, **factors)]
    return np.array([math.nan if value is None else float(value) for value in found])


def mean_over_time(rows: list[Row], key: str, **factors: Any) -> np.ndarray:
    """One value per seed: the mean of `key` over the points of the row's curve."""
    found = select(rows, **factors)
    return np.array([np.mean([point[key] for point in row["points"]]) for row in found])


CRITERION_COLUMNS = ("value", "interval", "must be", "so it")


def criterion_cells(part: dict[str, Any]) -> list[str]:
    """A deciding number in words, for the columns CRITERION_COLUMNS."""
    low, high = shown(part["low"]), shown(part["high"])
    side = "above" if part["above"] else "below"
    interval = "-" if low == high else f"{low} to {high}"
    must = f"{side} {shown(part['bound'])}"
    if part.get("matters") is not None:
        must += f", {shown(part['matters'])} matters"
    return [shown(part["value"]), interval, must, part["outcome"]]


def shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "-" if value is None else str(value)
