# SPDX-License-Identifier: Apache-2.0
"""Games as Gymnasium vector environments (see interface.py for what a row is).

SeatColumns gives every seat a column, for policies that all learn. LearningSeat gives
each game one column, and opponents play the other seats.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.types import ACTION_MASK, ActionSpec, ObservationLeaf

Answer = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class PendingMoves(NamedTuple):
    """All players who are to act: what `players[n]` sees and may do in game `games[n]`."""

    games: np.ndarray
    players: np.ndarray
    observations: dict[str, np.ndarray]
    legal: np.ndarray | None


class Opponents(Protocol):
    """Plays the seats that do not learn. A game's opponents change in game_over only."""

    def act(self, moves: PendingMoves) -> np.ndarray:
        """Actions [N, ...]."""

    def game_over(self, games: np.ndarray, seats: np.ndarray, returns: np.ndarray) -> None:
        """`games` have ended: their learning seats [N], and the sums of all rewards [N, P]."""


class _Columns(VectorEnv):
    """Spaces and observations of a vector environment over a game."""

    def __init__(self, game: VectorGame, num_envs: int) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = observation_space(game.spec)
        self.single_action_space = action_space(game.spec.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.game = game

    def close_extras(self, **kwargs: Any) -> None:
        self.game.close()

    def _legal(self) -> np.ndarray:
        """The masks of all columns."""
        raise NotImplementedError

    def _masks(self) -> dict[str, Any]:
        return {ACTION_MASK: self._legal()} if self.game.spec.action_mask_size else {}

    def _shown(self, leaves: dict[str, np.ndarray]) -> Any:
        """Leaves in the form of `single_observation_space`."""
        if isinstance(self.single_observation_space, spaces.Dict):
            return {_entry(name): array for name, array in leaves.items()}
        return leaves["observation"]


class SeatColumns(_Columns):
    """Column b * P + p is player p of game b. Players who are not to act have waiting rows.

    `num_envs` should be a multiple of P: seats without a column stay at their smallest legal
    action. A step that ends a game begins the next one at once, because rows of reset steps would
    be a large share of short games."""

    def __init__(self, game: VectorGame, num_envs: int | None = None) -> None:
        self._columns = game.num_games * game.spec.num_players
        super().__init__(game, num_envs or self._columns)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.game.reset(seed)
        return self._observed(self.game.observe_all()), self._masks()

    def step(self, actions: np.ndarray) -> Answer:
        game = self.game
        step = game.step(self._joint(np.asarray(actions)))
        ended, over = step.terminated | step.truncated, np.flatnonzero(step.over)
        last = game.observe_all(over) if len(over) else {}
        game.begin(step.over)
        seen, info = game.observe_all(), self._masks()
        if ended.any():
            # A player may leave before its game is over.
            final = {name: array.copy() for name, array in seen.items()} if last else seen
            for name, array in last.items():
                final[name][over] = array
            info["final_obs"], info["_final_obs"] = self._observed(final), self._flat(ended)
        flags = (self._flat(step.terminated), self._flat(step.truncated))
        return self._observed(seen), self._flat(step.rewards), *flags, info

    def _joint(self, actions: np.ndarray) -> np.ndarray:
        """[B, P, ...] out of one action per column."""
        shape = (self.game.num_games, self.game.spec.num_players)
        if self.num_envs < self._columns:
            rest: np.ndarray = np.zeros((self._columns, *actions.shape[1:]), actions.dtype)
            if self.game.spec.action_mask_size and actions.ndim == 1:
                rest[:] = self.game.legal_all().argmax(axis=2).reshape(-1)
            rest[: self.num_envs] = actions
            actions = rest
        return actions.reshape(*shape, *actions.shape[1:])

    def _legal(self) -> np.ndarray:
        return self._flat(self.game.legal_all())

    def _observed(self, leaves: dict[str, np.ndarray]) -> Any:
        return self._shown({name: self._flat(array) for name, array in leaves.items()})

    def _flat(self, array: np.ndarray) -> np.ndarray:
        """[B, P, ...] as columns."""
        return array.reshape(self._columns, *array.shape[2:])[: self.num_envs]


class LearningSeat(_Columns):
    """Column b holds the decisions of the learning player of game b.

    Its seat increases by one from game to game, and neighbouring games begin with different ones.
    A step that ends a game begins the next one at once."""

    def __init__(self, game: VectorGame, opponents: Opponents) -> None:
        super().__init__(game, game.num_games)
        self.opponents = opponents
        self.seats = np.zeros(game.num_games, dtype=np.int64)
        self._numbers = np.arange(game.num_games)
        self._returns = np.zeros((game.num_games, game.spec.num_players))

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.game.reset(seed)
        self.seats[:] = self._numbers % self.game.spec.num_players
        self._returns[:] = 0.0
        # What a player receives before its first decision is in no row.
        self._begin_rows(closed=True)
        self._play_opponents()
        return self._shown(self.game.observe(self.seats)), self._masks()

    def step(self, actions: np.ndarray) -> Answer:
        self._begin_rows(closed=False)
        self._advance(np.ones(self.num_envs, dtype=bool), np.asarray(actions))
        self._play_opponents()
        info = self._masks()
        if self._final:
            info["final_obs"], info["_final_obs"] = self._shown(self._final), self._closed
        seen = self._shown(self.game.observe(self.seats))
        return seen, self._rewards, self._terminated, self._truncated, info

    def _begin_rows(self, closed: bool) -> None:
        """Rows: rewards and ends of each learning player until its next decision or its end."""
        self._rewards = np.zeros(self.num_envs, dtype=np.float32)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), dtype=bool)
        self._closed = np.full(self.num_envs, closed)
        self._final: dict[str, np.ndarray] = {}

    def _play_opponents(self) -> None:
        """Step games until all learning players are to act."""
        while not (acting := self.game.to_act[self._numbers, self.seats]).all():
            self._advance(~acting, None)

    def _advance(self, moving: np.ndarray, actions: np.ndarray | None) -> None:
        """One step of the games in `moving`; `actions` [B] of the learning players, if they act."""
        to_act = self.game.to_act & moving[:, None]
        spec = self.game.spec
        shape = (self.num_envs, spec.num_players, *spec.action.shape)
        joint = np.zeros(shape, spec.action.field_dtype)
        if actions is not None:
            joint[self._numbers, self.seats] = actions
            to_act[self._numbers, self.seats] = False
        games, players = np.nonzero(to_act)
        if len(games):
            seen = self.game.observe(players, games)
            legal = self.game.legal(players, games) if spec.action_mask_size else None
            joint[games, players] = self.opponents.act(PendingMoves(games, players, seen, legal))
        step = self.game.step(joint, moving)
        self._returns += step.rewards
        self._add_to_rows(np.flatnonzero(moving & ~self._closed), step)
        over = np.flatnonzero(step.over)
        if len(over):
            self.opponents.game_over(over, self.seats[over], self._returns[over])
            self._returns[over] = 0.0
            self.seats[over] = (self.seats[over] + 1) % spec.num_players
            self.game.begin(step.over)

    def _add_to_rows(self, rows: np.ndarray, step: GameStep) -> None:
        seats = self.seats[rows]
        self._rewards[rows] += step.rewards[rows, seats]
        self._terminated[rows] = step.terminated[rows, seats]
        self._truncated[rows] = step.truncated[rows, seats]
        ended = rows[self._terminated[rows] | self._truncated[rows]]
        if len(ended):
            for name, array in self.game.observe(self.seats[ended], ended).items():
                shape = (self.num_envs, *array.shape[1:])
                self._final.setdefault(name, np.zeros(shape, array.dtype))[ended] = array
            self._closed[ended] = True

    def _legal(self) -> np.ndarray:
        return self.game.legal(self.seats)


def observation_space(spec: GameSpec) -> Space:
    """One Box for games with a single flat observation, otherwise a Dict of the leaves."""
    if [leaf.name for leaf in spec.observation] == ["observation"]:
        return _leaf_space(spec.observation[0])
    return spaces.Dict({_entry(leaf.name): _leaf_space(leaf) for leaf in spec.observation})


def action_space(action: ActionSpec) -> Space:
    if action.kind == "discrete":
        return spaces.Discrete(action.sizes[0])
    if action.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(action.sizes))
    low, high = (np.array(bound).reshape(action.shape) for bound in (action.low, action.high))
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _leaf_space(leaf: ObservationLeaf) -> Space:
    if leaf.kind == "discrete":
        return spaces.Discrete(leaf.categories)
    if leaf.kind == "image":
        return spaces.Box(0, 255, leaf.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)


def _entry(name: str) -> str:
    return name.removeprefix("observation.")
