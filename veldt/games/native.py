# SPDX-License-Identifier: Apache-2.0
"""What all native games share: resets, chance, turns, masks, and their state as arrays.

A game is a set of NumPy arrays with one row per game, and four short methods that fill and read
them.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.types import ActionSpec, ObservationLeaf

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashed(seed: int, games: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """uint64 [N], one for each game and episode (splitmix64). Not a stream: a game's cards depend
    neither on the pace of other games nor on how often a run was resumed."""
    start = np.uint64(seed % 2**64)
    mixed = _mixed(start + _GOLDEN * (games.astype(np.uint64) + np.uint64(1)))
    return _mixed(mixed + _GOLDEN * (episodes.astype(np.uint64) + np.uint64(1)))


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def game_spec(
    id: str,
    observation_size: int,
    num_actions: int,
    num_players: int = 2,
    simultaneous: bool = False,
    same_step_reset: bool = False,
) -> GameSpec:
    """The spec of a game with one flat observation and one choice among `num_actions`."""
    return GameSpec(
        id=id,
        num_players=num_players,
        observation=(ObservationLeaf("observation", (observation_size,), "float32", "vector"),),
        action=ActionSpec("discrete", sizes=(num_actions,)),
        action_mask_size=num_actions,
        simultaneous=simultaneous,
        same_step_reset=same_step_reset,
    )


class NativeGame(VectorGame):
    """Subclasses name their arrays in `state_names` and give _begin, _play, _seen and _allowed."""

    state_names: tuple[str, ...] = ()
    num_deals = 1
    """How many outcomes chance has; all are as likely."""

    def __init__(self, spec: GameSpec, num_games: int, seed: int) -> None:
        self.spec = spec
        self.num_games = num_games
        self.turns = np.zeros(num_games, dtype=np.int64)
        self.episodes = np.full(num_games, -1)
        self.waiting_for_reset = np.zeros(num_games, dtype=bool)
        self._seed = seed
        self._numbers = np.arange(num_games)

    @abstractmethod
    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        """Set up `games` (indices) with these outcomes of chance."""

    @abstractmethod
    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards [N, P], terminated [N] and truncated [N] of the moves `actions`: [N] of the
        players whose turn it is, [N, P] in simultaneous games. Sets `turns`."""

    @abstractmethod
    def _seen(self, players: np.ndarray) -> np.ndarray:
        """float32 [B, O]: the information state of each game's player."""

    @abstractmethod
    def _allowed(self, players: np.ndarray) -> np.ndarray:
        """bool [B, A], for players who are to act."""

    @property
    def to_act(self) -> np.ndarray:
        waiting = self.waiting_for_reset[:, None]
        if self.spec.simultaneous:
            return np.repeat(~waiting, self.spec.num_players, axis=1)
        return (np.arange(self.spec.num_players) == self.turns[:, None]) & ~waiting

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._seed, self.episodes[:] = seed, -1
        self._begin_next(np.ones(self.num_games, dtype=bool))

    def deal(self, deals: np.ndarray) -> None:
        """Begin new games with given outcomes of chance, each below `num_deals`."""
        self.waiting_for_reset[:] = False
        self.turns[:] = 0
        self.episodes += 1
        self._begin(self._numbers, np.asarray(deals))

    def observe(self, players: np.ndarray) -> dict[str, np.ndarray]:
        return {"observation": self._seen(players)}

    def legal(self, players: np.ndarray) -> np.ndarray:
        allowed = self._allowed(players)
        forced = ~self.to_act[self._numbers, players]
        allowed[forced] = False
        allowed[forced, 0] = True
        return allowed

    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        if games is None:
            games = np.ones(self.num_games, dtype=bool)
        resetting = games & self.waiting_for_reset
        playing = games & ~self.waiting_for_reset
        acted = self.to_act & games[:, None]
        rows = np.flatnonzero(playing)
        rewards = np.zeros(acted.shape, dtype=np.float32)
        terminated, truncated = np.zeros_like(playing), np.zeros_like(playing)
        moves = self._moves(rows, np.asarray(actions))
        rewards[rows], terminated[rows], truncated[rows] = self._play(rows, moves)
        if resetting.any():
            self._begin_next(resetting)
        over = terminated | truncated
        shape = (1, self.spec.num_players)
        step = GameStep(
            rewards=rewards,
            terminated=np.tile(terminated[:, None], shape),
            truncated=np.tile(truncated[:, None], shape),
            over=over,
            acted=acted,
        )
        self.waiting_for_reset |= over
        if self.spec.same_step_reset and over.any():
            step.final_observations = self.observe_all()
            self._begin_next(over)
        return step

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all that the games are in, for checkpoints and for walking a game tree."""
        names = ("turns", "episodes", "waiting_for_reset", *self.state_names)
        return {name: getattr(self, name).copy() for name in names}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for name, array in state.items():
            getattr(self, name)[...] = array

    def _moves(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        if self.spec.simultaneous:
            moves, players = actions[games], self._each_player()
            allowed = np.stack([self._allowed(player)[games] for player in players], axis=1)
        else:
            moves, allowed = actions[games, self.turns[games]], self._allowed(self.turns)[games]
        legal = (moves >= 0) & (moves < self.spec.action_mask_size)
        picked = np.where(legal, moves, 0)[..., None]
        legal &= np.take_along_axis(allowed, picked, axis=-1)[..., 0]
        if not legal.all():
            game = int(games[np.argwhere(~legal)[0][0]])
            raise ValueError(f"{self.spec.id}: action {actions[game]} is illegal in game {game}")
        return moves

    def _begin_next(self, which: np.ndarray) -> None:
        games = np.flatnonzero(which)
        self.waiting_for_reset[games] = False
        self.turns[games] = 0
        self.episodes[games] += 1
        drawn = hashed(self._seed, games, self.episodes[games]) % np.uint64(self.num_deals)
        self._begin(games, drawn.astype(np.int64))


def one_hot(values: np.ndarray, size: int) -> np.ndarray:
    """float32 [..., size]; all zeros for negative values."""
    return (values[..., None] == np.arange(size)).astype(np.float32)


def zero_sum(first: np.ndarray) -> np.ndarray:
    """[N, 2]: what the first of two players gets, and the other loses."""
    return np.stack([first, -first], axis=1)
