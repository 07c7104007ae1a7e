# SPDX-License-Identifier: Apache-2.0
"""Several players in one environment: the interface of all games, and the base of native ones.

A VectorGame steps B games of P players together; turn-based and simultaneous games differ only in
`to_act`. It knows nothing of policies or trajectories. seats.py turns it into columns of rows:

- A row is one decision of one player. A column holds the rows of one seat of one game, in order.
- The reward of a row is the sum of what its player received from its action to its next decision or
  its end. Rewards before the first decision or after the end count for the game's result only.
- `terminated` or `truncated` is set on the last decision of a player, also when the move of another
  player ended the game. A player may leave before the game ends.
- LearningSeat: column b holds the decisions of game b's learning seat. Opponents move inside the
  step. Seats and opponents change between two games only.
- SeatColumns: column b * P + p is player p of game b. A player who is not to act gets a waiting row
  with one allowed action, so that nothing is learned from it. A move is one env step: P rows of a
  turn-based game are one, P rows of a simultaneous one are P.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from gymnasium import Space

from veldt.types import ActionSpec, ObservationLeaf

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class GameSpec:
    """What determines buffers and networks; the same for every player."""

    id: str
    num_players: int
    observation: tuple[ObservationLeaf, ...]
    action: ActionSpec
    action_mask_size: int = 0
    """Length of a player's mask; 0 when every action is always allowed."""
    simultaneous: bool = False
    """True: all players act in the same step. False: one does."""
    policies: tuple[str, ...] = ()
    """Name of the policy of each player; empty: all share one."""


@dataclass
class GameStep:
    """The result of a step of B games with P players; zeros in games that were not stepped."""

    rewards: np.ndarray
    """float32 [B, P]: what each player received in this step."""
    terminated: np.ndarray
    truncated: np.ndarray
    """bool [B, P]: set once, in the step in which a player's game ends or the player leaves."""
    over: np.ndarray
    """bool [B]: the game has ended for all."""

    @staticmethod
    def empty(num_games: int, num_players: int) -> GameStep:
        zeros = np.zeros((num_games, num_players), bool)
        return GameStep(zeros.astype(np.float32), zeros, zeros.copy(), np.zeros(num_games, bool))


class VectorGame(ABC):
    """B games of P players stepped together. Call reset() once before the first step.

    A seed determines the chance events of game b's episode e, independently of other games."""

    action_names: tuple[str, ...] = ()
    """What a person types for each action; numbers where it is empty."""
    action_space: Space | None = None
    """Of the environment behind it, which may not count actions from 0."""

    def __init__(self, spec: GameSpec, num_games: int) -> None:
        self.spec, self.num_games = spec, num_games
        self.over = np.zeros(num_games, dtype=bool)
        """Games that have ended and were not begun again."""

    @property
    @abstractmethod
    def to_act(self) -> np.ndarray:
        """bool [B, P]: who must choose an action; no player of a game that is over."""

    @property
    def turn(self) -> np.ndarray:
        """int [B]: the player to act in a turn-based game; 0 where there is none."""
        return self.to_act.argmax(axis=1)

    @abstractmethod
    def reset(self, seed: int | None = None) -> None:
        """Begin new games everywhere; with a seed, as if they had been made with it."""

    @abstractmethod
    def begin(self, games: np.ndarray) -> None:
        """Begin the next game in those of `games`, bool [B], that are over."""

    @abstractmethod
    def observe(
        self, players: np.ndarray, games: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The observation of `players[n]` in game `games[n]`, its turn or not: leaf -> [N, ...].
        `games`: numbers of games; None: all."""

    @abstractmethod
    def legal(self, players: np.ndarray, games: np.ndarray | None = None) -> np.ndarray:
        """bool [N, A]: allowed actions of `players[n]` in game `games[n]`; only action 0 where it
        is not to act. Only for games with masks."""

    @abstractmethod
    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        """Play `actions` [B, P, ...]; entries of players who are not to act are ignored.
        `games`, bool [B]: only these are stepped. Games that are over wait for begin()."""

    def close(self) -> None:  # noqa: B027 - most games are arrays and hold nothing
        """Release what the games hold."""

    def drawn(self, player: int) -> str:
        """The first game as `player` sees it, for a terminal."""
        return str(self.observe(np.array([player]), np.array([0])))

    def observe_all(self, games: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The observations of all players: leaf -> [N, P, ...]. `games` as in observe()."""
        seen = [self.observe(players, games) for players in self._each_player(games)]
        return {
            leaf.name: np.stack([one[leaf.name] for one in seen], axis=1)
            for leaf in self.spec.observation
        }

    def legal_all(self) -> np.ndarray:
        """bool [B, P, A]: the allowed actions of all players."""
        return np.stack([self.legal(players) for players in self._each_player()], axis=1)

    def _each_player(self, games: np.ndarray | None = None) -> list[np.ndarray]:
        count = self.num_games if games is None else len(games)
        return [np.full(count, player) for player in range(self.spec.num_players)]


def actions_of(players: np.ndarray, actions: np.ndarray, num_players: int) -> np.ndarray:
    """[B, P, ...] with `actions[b]` as the action of `players[b]` and zeros elsewhere."""
    spread = np.zeros((len(players), num_players, *actions.shape[1:]), actions.dtype)
    spread[np.arange(len(players)), players] = actions
    return spread


class NativeGame(VectorGame):
    """A game in NumPy arrays, with a flat observation and one choice per move.

    Subclasses define the methods with an underscore."""

    id: str
    observation_size: int
    num_actions: int
    num_players = 2
    simultaneous = False
    num_deals = 1
    """Number of equally likely outcomes of chance."""

    def __init__(self, num_games: int, seed: int = 0) -> None:
        leaf = ObservationLeaf("observation", (self.observation_size,), "float32", "vector")
        action = ActionSpec("discrete", sizes=(self.num_actions,))
        spec = GameSpec(
            self.id, self.num_players, (leaf,), action, self.num_actions, self.simultaneous
        )
        super().__init__(spec, num_games)
        self.turns = np.zeros(num_games, dtype=np.int64)
        self.episodes = np.full(num_games, -1)
        self._seed = seed
        self._numbers = np.arange(num_games)
        self._players = np.arange(self.num_players)
        self._allocate()

    def _allocate(self) -> None:
        """Make the arrays of `num_games` games."""

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        """Set up `games` (indices) with these outcomes of chance."""

    @abstractmethod
    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards [N, P] and ends [N] of the moves `actions`: [N] of the players whose turn it is,
        [N, P] in simultaneous games. Sets `turns`."""

    @abstractmethod
    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        """float32 [N, O]: the information state of `players[n]` in game `games[n]`."""

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        """bool [N, A], a new array, for players who are to act."""
        return np.ones((len(games), self.num_actions), dtype=bool)

    @property
    def to_act(self) -> np.ndarray:
        playing = ~self.over[:, None]
        if self.simultaneous:
            return np.repeat(playing, self.num_players, axis=1)
        return (self._players == self.turns[:, None]) & playing

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._seed, self.episodes[:] = seed, -1
        self._begin_next(self._numbers)

    def begin(self, games: np.ndarray) -> None:
        self._begin_next(np.flatnonzero(games & self.over))

    def deal(self, deals: np.ndarray) -> None:
        """Begin new games with given outcomes of chance, each below `num_deals`."""
        self.reset()
        self.turns[:] = 0
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
        rows = np.flatnonzero(~self.over if games is None else games & ~self.over)
        step = GameStep.empty(self.num_games, self.num_players)
        step.rewards[rows], over = self._play(rows, self._moves(rows, np.asarray(actions)))
        step.over[rows] = over
        step.terminated[rows] = over[:, None]
        self.over[rows] = over
        return step

    def _moves(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        if self.simultaneous:
            moves = actions[games]
            of_each = [np.full(len(games), player) for player in self._players]
            allowed = np.stack([self._allowed(games, players) for players in of_each], axis=1)
        else:
            turns = self.turns[games]
            moves, allowed = actions[games, turns], self._allowed(games, turns)
        legal = (moves >= 0) & (moves < self.num_actions)
        picked = np.where(legal, moves, 0)[..., None]
        legal &= np.take_along_axis(allowed, picked, axis=-1)[..., 0]
        if not legal.all():
            game = int(games[np.argwhere(~legal)[0][0]])
            raise ValueError(f"{self.id}: action {actions[game]} is illegal in game {game}")
        return moves

    def _begin_next(self, games: np.ndarray) -> None:
        self.over[games] = False
        self.turns[games] = 0
        self.episodes[games] += 1
        drawn = hashed(self._seed, games, self.episodes[games]) % np.uint64(self.num_deals)
        self._begin(games, drawn.astype(np.int64))


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


def zero_sum(first: np.ndarray) -> np.ndarray:
    """[N, 2]: what the first of two players gets, and the other loses."""
    return np.stack([first, -first], axis=1)
