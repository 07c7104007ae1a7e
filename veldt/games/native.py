# SPDX-License-Identifier: Apache-2.0
"""Base class of native games: resets, chance, turns, masks and saved state, as NumPy arrays."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.types import ActionSpec, ObservationLeaf

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashed(seed: int, games: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """uint64 [N], one for each game and episode (splitmix64).

    Not a stream, so that a game's cards depend neither on other games nor on resumes."""
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
    """Subclasses list their arrays in `state_names` and define _begin, _play, _seen, _allowed."""

    state_names: tuple[str, ...] = ()
    num_deals = 1
    """Number of equally likely outcomes of chance."""

    def __init__(self, spec: GameSpec, num_games: int, seed: int) -> None:
        self.spec = spec
        self.num_games = num_games
        self.turns = np.zeros(num_games, dtype=np.int64)
        self.episodes = np.full(num_games, -1)
        self.waiting_for_reset = np.zeros(num_games, dtype=bool)
        self._seed = seed
        self._numbers = np.arange(num_games)
        self._players = np.arange(spec.num_players)
        self._to_act: np.ndarray | None = None

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
    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        """float32 [N, O]: the information state of `players[n]` in game `games[n]`."""

    @abstractmethod
    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        """bool [N, A], a new array, for players who are to act."""

    @property
    def to_act(self) -> np.ndarray:
        if self._to_act is None:
            playing = ~self.waiting_for_reset[:, None]
            if self.spec.simultaneous:
                self._to_act = np.repeat(playing, self.spec.num_players, axis=1)
            else:
                self._to_act = (self._players == self.turns[:, None]) & playing
        return self._to_act

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._seed, self.episodes[:] = seed, -1
        self._begin_next(self._numbers)

    def begin(self, games: np.ndarray) -> None:
        self._begin_next(np.flatnonzero(games & self.waiting_for_reset))

    def deal(self, deals: np.ndarray) -> None:
        """Begin new games with given outcomes of chance, each below `num_deals`."""
        self.reset()
        self._begin(self._numbers, np.asarray(deals))

    def observe(
        self, players: np.ndarray, games: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        return {"observation": self._seen(self._numbers if games is None else games, players)}

    def legal(self, players: np.ndarray, games: np.ndarray | None = None) -> np.ndarray:
        games = self._numbers if games is None else games
        allowed = self._allowed(games, players)
        forced = ~self.to_act[games, players]
        if forced.any():
            allowed[forced] = False
            allowed[forced, 0] = True
        return allowed

    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        if games is None:
            acted, playing, resetting = self.to_act, ~self.waiting_for_reset, self.waiting_for_reset
        else:
            acted, playing = self.to_act & games[:, None], games & ~self.waiting_for_reset
            resetting = games & self.waiting_for_reset
        late, rows = np.flatnonzero(resetting), np.flatnonzero(playing)
        step = GameStep(
            rewards=np.zeros(acted.shape, dtype=np.float32),
            terminated=np.zeros(acted.shape, dtype=bool),
            truncated=np.zeros(acted.shape, dtype=bool),
            over=np.zeros(self.num_games, dtype=bool),
            acted=acted,
        )
        rewards, terminated, truncated = self._play(rows, self._moves(rows, np.asarray(actions)))
        self._to_act = None
        step.rewards[rows] = rewards
        over = terminated | truncated
        if len(late):
            self._begin_next(late)
        if over.any():
            step.terminated[rows], step.truncated[rows] = terminated[:, None], truncated[:, None]
            step.over[rows] = over
            self.waiting_for_reset[rows] = over
            if self.spec.same_step_reset:
                step.final_observations = self._last_seen(rows[over])
                self._begin_next(rows[over])
        return step

    def state(self) -> dict[str, np.ndarray]:
        """Copies, for checkpoints and for walking a game tree."""
        names = ("turns", "episodes", "waiting_for_reset", *self.state_names)
        return {name: getattr(self, name).copy() for name in names}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for name, array in state.items():
            getattr(self, name)[...] = array
        self._to_act = None

    def _last_seen(self, games: np.ndarray) -> dict[str, np.ndarray]:
        (leaf,) = self.spec.observation
        shape = (self.num_games, self.spec.num_players, *leaf.shape)
        last = np.zeros(shape, dtype=np.float32)
        for player in range(self.spec.num_players):
            last[games, player] = self._seen(games, np.full(len(games), player))
        return {leaf.name: last}

    def _moves(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        if self.spec.simultaneous:
            moves = actions[games]
            of_each = [np.full(len(games), player) for player in range(self.spec.num_players)]
            allowed = np.stack([self._allowed(games, players) for players in of_each], axis=1)
        else:
            turns = self.turns[games]
            moves, allowed = actions[games, turns], self._allowed(games, turns)
        legal = (moves >= 0) & (moves < self.spec.action_mask_size)
        picked = np.where(legal, moves, 0)[..., None]
        legal &= np.take_along_axis(allowed, picked, axis=-1)[..., 0]
        if not legal.all():
            game = int(games[np.argwhere(~legal)[0][0]])
            raise ValueError(f"{self.spec.id}: action {actions[game]} is illegal in game {game}")
        return moves

    def _begin_next(self, games: np.ndarray) -> None:
        self._to_act = None
        self.waiting_for_reset[games] = False
        self.turns[games] = 0
        self.episodes[games] += 1
        if self.num_deals == 1:
            self._begin(games, np.zeros(len(games), dtype=np.int64))
            return
        drawn = hashed(self._seed, games, self.episodes[games]) % np.uint64(self.num_deals)
        self._begin(games, drawn.astype(np.int64))


_HOT = {size: np.eye(size + 1, size, dtype=np.float32) for size in (2, 3, 6)}


def one_hot(values: np.ndarray, size: int) -> np.ndarray:
    """float32 [..., size]; all zeros for -1."""
    return _HOT[size][values]  # -1 is the last row, which has no one


def zero_sum(first: np.ndarray) -> np.ndarray:
    """[N, 2]: what the first of two players gets, and the other loses."""
    return np.stack([first, -first], axis=1)
