# SPDX-License-Identifier: Apache-2.0
"""Who plays whom in a league, who is frozen and who is reset; the payoff that decides it.

Rules and constants of AlphaStar's published pseudocode (Vinyals et al. 2019). Players are numbered
in the order in which they joined. Freezing a learning player adds a player that does not change
any more. w is the learning player's win rate against another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = "main", "main_exploiter", "league_exploiter"
SCRIPTED = "scripted"
"""A frozen player that follows a rule and never leaves the pool."""
KINDS = (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER, SCRIPTED)
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


def _no_results() -> np.ndarray:
    return np.zeros((0, 0))


@dataclass
class Payoff:
    """Results of all pairs; each new result of a pair makes its older ones count less."""

    decay: float = 0.99
    games: np.ndarray = field(default_factory=_no_results)
    points: np.ndarray = field(default_factory=_no_results)
    """float64 [M, M], decayed: games of row against column, and wins + draws/2 of the row."""
    seated_first: np.ndarray = field(default_factory=lambda: _no_results().astype(np.int64))
    """int64 [M, M], not decayed: games in which the row had the first seat against the column."""

    def add_player(self) -> None:
        for name in ("games", "points", "seated_first"):
            setattr(self, name, np.pad(getattr(self, name), ((0, 1), (0, 1))))

    def record(self, first: int, second: int, wins: int, draws: int, losses: int) -> None:
        """Several results of a pair at once, from the view of the first seat; their order is not
        known, so each counts as their mean."""
        count = wins + draws + losses
        self.seated_first[first, second] += count
        if first == second or not count:
            return  # against itself it wins half of the time, which win_rates returns anyway
        kept, mean = self.decay**count, (wins + 0.5 * draws) / count
        added = (1.0 - kept) / (1.0 - self.decay) if self.decay < 1.0 else count
        for row, column, points in ((first, second, mean), (second, first, 1.0 - mean)):
            self.games[row, column] = self.games[row, column] * kept + added
            self.points[row, column] = self.points[row, column] * kept + points * added

    def forget(self, player: int) -> None:
        """Delete the results of a number that another player takes over."""
        for table in (self.games, self.points, self.seated_first):
            table[player], table[:, player] = 0, 0

    def win_rates(self, player: int) -> np.ndarray:
        """float64 [M]: w against each; 1/2 before any game."""
        games = self.games[player]
        return np.where(games > 0, self.points[player] / np.where(games > 0, games, 1.0), 0.5)


@dataclass
class Roster:
    """What each player is. A frozen player's parent is the learning player it was frozen from."""

    kinds: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    frozen: list[bool] = field(default_factory=list)

    def add(self, kind: str, parent: int | None = None, frozen: bool = False) -> None:
        """Add a player; without a parent it is its own."""
        self.parents.append(len(self.kinds) if parent is None else parent)
        self.kinds.append(kind)
        self.frozen.append(frozen)

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


def opponent_chances(
    rule: str, player: int, roster: Roster, payoff: Payoff, weighting: str = "squared"
) -> np.ndarray:
    """float64 [M]: how often `player` meets each player; adds up to 1.

    `weighting` is that of the rule "pfsp". Before any player is frozen, the rules fall back to
    self-play."""
    chances, rates = np.zeros(len(roster.kinds)), payoff.win_rates(player)
    frozen = roster.all_frozen()
    if rule == "alphastar":
        _ALPHASTAR[roster.kinds[player]](player, roster, rates, chances)
    elif rule == "latest" or not len(frozen):
        chances[player] = 1.0
    elif rule == "uniform":
        chances[frozen] = 1.0 / len(frozen)
    else:
        chances[frozen] = pfsp(rates[frozen], weighting)
    return chances


def _main(player: int, roster: Roster, rates: np.ndarray, chances: np.ndarray) -> None:
    """Half PFSP over all frozen, a check of what was lost to, the rest self-play."""
    frozen, left = roster.all_frozen(), 1.0
    if len(frozen):
        chances[frozen] += _PFSP_SHARE * pfsp(rates[frozen], "squared")
        left -= _PFSP_SHARE
    # Frozen exploiters that still win, otherwise its own past that was beaten before.
    for rivals, bound in (
        (roster.frozen_exploiters(), _EXPLOITED_BELOW),
        (roster.snapshots_of(player), _FORGOTTEN_BELOW),
    ):
        strong = rivals[rates[rivals] < bound]
        if len(strong):
            chances[strong] += _VERIFICATION_SHARE * pfsp(rates[strong], "squared")
            left -= _VERIFICATION_SHARE
            break
    _meet_mains(roster, rates, chances, left, _SELF_PLAY_ABOVE)


def _main_exploiter(player: int, roster: Roster, rates: np.ndarray, chances: np.ndarray) -> None:
    _meet_mains(roster, rates, chances, 1.0, _EXPLOITING_ABOVE)


def _league_exploiter(player: int, roster: Roster, rates: np.ndarray, chances: np.ndarray) -> None:
    frozen, mains = roster.all_frozen(), roster.learning_mains()
    if len(frozen):
        chances[frozen] = pfsp(rates[frozen], "linear_capped")
    else:
        chances[mains] = 1.0 / len(mains)


def _meet_mains(
    roster: Roster, rates: np.ndarray, chances: np.ndarray, share: float, above: float
) -> None:
    """Divide `share` among the learning mains; of one that is too strong, its past is met."""
    mains = roster.learning_mains()
    for main in mains.tolist():
        past = roster.snapshots_of(main)
        if rates[main] > above or not len(past):
            chances[main] += share / len(mains)
        else:
            chances[past] += share / len(mains) * pfsp(rates[past], "variance")


_ALPHASTAR = {
    MAIN: _main,
    MAIN_EXPLOITER: _main_exploiter,
    LEAGUE_EXPLOITER: _league_exploiter,
}


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
    """Whether a player returns to its initial weights, *after* the pool has the frozen ones."""
    return bool(random.random() < _RESET_CHANCES[kind])
