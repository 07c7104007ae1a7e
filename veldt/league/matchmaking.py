# SPDX-License-Identifier: Apache-2.0
"""Who plays whom in a league, who is frozen and who begins anew; the payoff that decides it.

Rules and constants of AlphaStar's published pseudocode (Vinyals et al. 2019). Players are numbered
in the order in which they joined. A learning player goes on changing; freezing it adds a player
that never changes again. w is the learning player's win rate against another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = "main", "main_exploiter", "league_exploiter"
SCRIPTED = "scripted"
"""A frozen player that nobody was frozen into: it follows a rule, and never leaves."""
KINDS = (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER)
_NUMBERED = (*KINDS, SCRIPTED)
RULES = ("latest", "uniform", "pfsp", "alphastar")
WEIGHTINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "squared": lambda w: (1.0 - w) ** 2,
    "variance": lambda w: w * (1.0 - w),
    "linear": lambda w: 1.0 - w,
    "linear_capped": lambda w: np.minimum(0.5, 1.0 - w),
}
ELO_START, ELO_STEP = 1200.0, 32.0

_PFSP_SHARE, _VERIFICATION_SHARE = 0.5, 0.15
_EXPLOITED_BELOW, _FORGOTTEN_BELOW = 0.3, 0.7
_SELF_PLAY_ABOVE, _EXPLOITING_ABOVE = 0.3, 0.1
_BEATS_ABOVE = 0.7
_RESET_CHANCES = {MAIN: 0.0, MAIN_EXPLOITER: 1.0, LEAGUE_EXPLOITER: 0.25}


def pfsp(win_rates: np.ndarray, weighting: str) -> np.ndarray:
    """Prioritised fictitious self-play: chances [M] proportional to f(w); uniform where all f are
    about 0."""
    weights = WEIGHTINGS[weighting](np.asarray(win_rates, dtype=np.float64))
    total = weights.sum()
    if total < 1e-10:
        return np.full(len(weights), 1.0 / len(weights))
    return weights / total


def elo(first: float, second: float, score: float) -> tuple[float, float]:
    """Both ratings after a game in which the first scored 1, 1/2 or 0."""
    expected = 1.0 / (1.0 + 10.0 ** ((second - first) / 400.0))
    change = ELO_STEP * (score - expected)
    return first + change, second - change


@dataclass
class Payoff:
    """Results of all pairs; each new result of a pair makes its older ones count less."""

    decay: float = 0.99
    games: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """float64 [M, M], decayed: games of row against column, and wins + draws/2 of the row."""
    seated_first: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """int64 [M, M], not decayed: games in which the row had the first seat against the column."""

    def add_player(self) -> int:
        """Room for one more; returns its number."""
        for name in ("games", "points", "seated_first"):
            setattr(self, name, np.pad(getattr(self, name), ((0, 1), (0, 1))))
        return len(self.games) - 1

    def record(self, first: int, second: int, score: float) -> None:
        """A result: `first` had the first seat and scored 1, 1/2 or 0."""
        self.seated_first[first, second] += 1
        if first == second:
            return  # against itself it wins half of the time, and that is what win_rates says
        for row, column, points in ((first, second, score), (second, first, 1.0 - score)):
            self.games[row, column] = self.games[row, column] * self.decay + 1.0
            self.points[row, column] = self.points[row, column] * self.decay + points

    def record_many(self, first: int, second: int, wins: int, draws: int, losses: int) -> None:
        """Several results of a pair at once, seen from the first seat; within them the order is not
        known, so each counts as their mean."""
        count = wins + draws + losses
        self.seated_first[first, second] += count
        if first == second or not count:
            return
        kept, mean = self.decay**count, (wins + 0.5 * draws) / count
        added = (1.0 - kept) / (1.0 - self.decay) if self.decay < 1.0 else count
        for row, column, points in ((first, second, mean), (second, first, 1.0 - mean)):
            self.games[row, column] = self.games[row, column] * kept + added
            self.points[row, column] = self.points[row, column] * kept + points * added

    def forget(self, player: int) -> None:
        """Somebody else takes this number: none of its results are the new one's."""
        for table in (self.games, self.points, self.seated_first):
            table[player], table[:, player] = 0, 0

    def win_rates(self, player: int) -> np.ndarray:
        """float64 [M]: w against each; 1/2 before any game."""
        games = self.games[player]
        return np.where(games > 0, self.points[player] / np.where(games > 0, games, 1.0), 0.5)

    def state(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("games", "points", "seated_first")}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for name, array in state.items():
            setattr(self, name, np.array(array))


@dataclass
class Roster:
    """What each player is. A frozen player's parent is the learning player it was frozen from."""

    kinds: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    frozen: list[bool] = field(default_factory=list)

    def add_learning(self, kind: str) -> int:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of player '{kind}'; use {', '.join(KINDS)}")
        return self._add(kind, len(self.kinds), frozen=False)

    def add_frozen(self, parent: int) -> int:
        return self._add(self.kinds[parent], parent, frozen=True)

    def add_scripted(self) -> int:
        return self._add(SCRIPTED, len(self.kinds), frozen=True)

    def state(self) -> dict[str, np.ndarray]:
        kinds = [_NUMBERED.index(kind) for kind in self.kinds]
        columns = {"kinds": kinds, "parents": self.parents, "frozen": self.frozen}
        return {name: np.array(column, dtype=np.int64) for name, column in columns.items()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.kinds = [_NUMBERED[number] for number in state["kinds"].tolist()]
        self.parents = state["parents"].tolist()
        self.frozen = [bool(flag) for flag in state["frozen"].tolist()]

    def _add(self, kind: str, parent: int, frozen: bool) -> int:
        self.kinds.append(kind)
        self.parents.append(parent)
        self.frozen.append(frozen)
        return len(self.kinds) - 1

    def learning_mains(self) -> np.ndarray:
        return self._where(lambda one: not self.frozen[one] and self.kinds[one] == MAIN)

    def all_frozen(self) -> np.ndarray:
        return self._where(lambda one: self.frozen[one])

    def frozen_exploiters(self) -> np.ndarray:
        """Snapshots of main exploiters; those of league exploiters are met as all frozen are."""
        return self._where(lambda one: self.frozen[one] and self.kinds[one] == MAIN_EXPLOITER)

    def snapshots_of(self, player: int) -> np.ndarray:
        return self._where(lambda one: self.frozen[one] and self.parents[one] == player)

    def _where(self, condition: Callable[[int], bool]) -> np.ndarray:
        return np.array([one for one in range(len(self.kinds)) if condition(one)], dtype=np.int64)


class Branch(NamedTuple):
    """One way to come to an opponent: how likely it is, and whom it then chooses."""

    reason: str
    chance: float
    opponents: np.ndarray
    chances: np.ndarray


def branches(
    rule: str, player: int, roster: Roster, payoff: Payoff, weighting: str = "squared"
) -> list[Branch]:
    """All ways in which `player` gets an opponent; their chances add up to 1. `weighting` is that
    of the rule "pfsp". Nobody is frozen at first: then the rules fall back to self-play."""
    if rule not in RULES:
        raise ValueError(f"unknown rule '{rule}'; use {', '.join(RULES)}")
    if rule == "alphastar":
        return _ALPHASTAR[roster.kinds[player]](player, roster, payoff)
    if rule == "latest":
        return [_certain("self_play", 1.0, player)]
    frozen = roster.all_frozen()
    if not len(frozen):
        return [_certain("self_play", 1.0, player)]
    if rule == "uniform":
        return [Branch("uniform", 1.0, frozen, np.full(len(frozen), 1.0 / len(frozen)))]
    return [_pfsp_over("pfsp", 1.0, frozen, payoff.win_rates(player), weighting)]


def choose_opponent(ways: list[Branch], random: np.random.Generator) -> tuple[int, str]:
    """An opponent and the reason, drawn from `branches`."""
    way = ways[int(random.choice(len(ways), p=[one.chance for one in ways]))]
    return int(random.choice(way.opponents, p=way.chances)), way.reason


def ready_to_freeze(
    player: int, roster: Roster, payoff: Payoff, steps_passed: int, period: int
) -> bool:
    """After `period` steps if it beats all it must beat, at the latest after twice as many. Main
    exploiters must beat the learning mains, the others every frozen player."""
    if steps_passed < period:
        return False
    exploits_mains = roster.kinds[player] == MAIN_EXPLOITER
    rivals = roster.learning_mains() if exploits_mains else roster.all_frozen()
    beats_all = bool((payoff.win_rates(player)[rivals] > _BEATS_ABOVE).all())
    return beats_all or steps_passed >= 2 * period


def reset_after_freezing(kind: str, random: np.random.Generator) -> bool:
    """Whether a player goes back to its initial weights, *after* the pool has the frozen ones."""
    return bool(random.random() < _RESET_CHANCES[kind])


def _main(player: int, roster: Roster, payoff: Payoff) -> list[Branch]:
    rates, frozen = payoff.win_rates(player), roster.all_frozen()
    ways = []
    left = 1.0
    if len(frozen):
        ways.append(_pfsp_over("pfsp", _PFSP_SHARE, frozen, rates, "squared"))
        left -= _PFSP_SHARE
    check = _verification(player, roster, rates)
    if check is not None:
        ways.append(check)
        left -= check.chance
    mains = roster.learning_mains()
    for main in mains:
        ways.append(_self_play(int(main), left / len(mains), roster, rates))
    return ways


def _verification(player: int, roster: Roster, rates: np.ndarray) -> Branch | None:
    """Frozen exploiters that still win, else own past that was beaten before; None: all is well."""
    for reason, rivals, bound in (
        ("exploited", roster.frozen_exploiters(), _EXPLOITED_BELOW),
        ("forgotten", roster.snapshots_of(player), _FORGOTTEN_BELOW),
    ):
        strong = rivals[rates[rivals] < bound]
        if len(strong):
            return _pfsp_over(reason, _VERIFICATION_SHARE, strong, rates, "squared")
    return None


def _self_play(main: int, chance: float, roster: Roster, rates: np.ndarray) -> Branch:
    past = roster.snapshots_of(main)
    if rates[main] > _SELF_PLAY_ABOVE or not len(past):
        return _certain("self_play", chance, main)
    return _pfsp_over("curriculum", chance, past, rates, "variance")


def _main_exploiter(player: int, roster: Roster, payoff: Payoff) -> list[Branch]:
    rates, mains = payoff.win_rates(player), roster.learning_mains()
    ways = []
    for main in mains:
        past, chance = roster.snapshots_of(int(main)), 1.0 / len(mains)
        if rates[main] > _EXPLOITING_ABOVE or not len(past):
            ways.append(_certain("exploit", chance, int(main)))
        else:
            ways.append(_pfsp_over("curriculum", chance, past, rates, "variance"))
    return ways


def _league_exploiter(player: int, roster: Roster, payoff: Payoff) -> list[Branch]:
    frozen = roster.all_frozen()
    if len(frozen):
        return [_pfsp_over("pfsp", 1.0, frozen, payoff.win_rates(player), "linear_capped")]
    mains = roster.learning_mains()
    return [_certain("exploit", 1.0 / len(mains), int(main)) for main in mains]


_ALPHASTAR = {
    MAIN: _main,
    MAIN_EXPLOITER: _main_exploiter,
    LEAGUE_EXPLOITER: _league_exploiter,
}


def _pfsp_over(
    reason: str, chance: float, rivals: np.ndarray, rates: np.ndarray, weighting: str
) -> Branch:
    return Branch(reason, chance, rivals, pfsp(rates[rivals], weighting))


def _certain(reason: str, chance: float, opponent: int) -> Branch:
    return Branch(reason, chance, np.array([opponent]), np.ones(1))
