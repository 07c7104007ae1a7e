# SPDX-License-Identifier: Apache-2.0
"""Several players in one environment: the interface of native games and PettingZoo.

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
- With next-step resets, the step after an end begins the next game; its rows are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from veldt.types import ActionSpec, ObservationLeaf


@dataclass(frozen=True)
class GameSpec:
    """What shapes buffers and networks; the same for every player."""

    id: str
    num_players: int
    observation: tuple[ObservationLeaf, ...]
    action: ActionSpec
    action_mask_size: int = 0
    """Length of a player's mask; 0 when every action is always allowed."""
    simultaneous: bool = False
    """True: all players act in the same step. False: one does."""
    same_step_reset: bool = False
    """True: a step that ends a game begins the next one at once (SAME_STEP). False: the step after
    it does, ignoring its actions (NEXT_STEP)."""


@dataclass
class GameStep:
    """The result of a step of B games with P players."""

    rewards: np.ndarray
    """float32 [B, P]: what each player received in this step."""
    terminated: np.ndarray
    truncated: np.ndarray
    """bool [B, P]: set once, in the step in which a player's game ends or the player leaves."""
    over: np.ndarray
    """bool [B]: the game has ended for all."""
    acted: np.ndarray
    """bool [B, P]: whose action was used."""
    final_observations: dict[str, np.ndarray] | None = None
    """With same_step_reset and a game over: leaf -> [B, P, ...], valid where `over`."""


class VectorGame(ABC):
    """B games of P players stepped together. Call reset() once before the first step.

    A seed determines the chance events of game b's episode e, independently of other games."""

    spec: GameSpec
    num_games: int
    action_names: tuple[str, ...] = ()
    """What a person types for each action; numbers where it is empty."""

    @property
    @abstractmethod
    def to_act(self) -> np.ndarray:
        """bool [B, P]: who must choose an action; none in a game that waits for its reset step."""

    @property
    def turn(self) -> np.ndarray:
        """int [B]: the player to act in a turn-based game; 0 where there is none."""
        return self.to_act.argmax(axis=1)

    @abstractmethod
    def reset(self, seed: int | None = None) -> None:
        """Begin new games everywhere; with a seed, as if they had been made with it."""

    @abstractmethod
    def begin(self, games: np.ndarray) -> None:
        """Begin the next game at once in those of `games`, bool [B], that wait for their reset."""

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
        `games`, bool [B]: only these are stepped."""

    def state(self) -> dict[str, np.ndarray] | None:
        """The complete state, for an exact resume; None where it cannot be saved."""
        return None

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError(f"{self.spec.id} cannot be restored")

    def close(self) -> None:  # noqa: B027 - most games are arrays and hold nothing
        """Release what the games hold."""

    def drawn(self, player: int) -> str:
        """The first game as `player` sees it, for a terminal."""
        return str(self.observe(np.array([player]), np.array([0])))

    def observe_all(self) -> dict[str, np.ndarray]:
        """The observations of all players: leaf -> [B, P, ...]."""
        seen = [self.observe(players) for players in self._each_player()]
        return {
            leaf.name: np.stack([one[leaf.name] for one in seen], axis=1)
            for leaf in self.spec.observation
        }

    def legal_all(self) -> np.ndarray:
        """bool [B, P, A]: the allowed actions of all players."""
        return np.stack([self.legal(players) for players in self._each_player()], axis=1)

    def _each_player(self) -> list[np.ndarray]:
        return [np.full(self.num_games, player) for player in range(self.spec.num_players)]


def actions_of(players: np.ndarray, actions: np.ndarray, num_players: int) -> np.ndarray:
    """[B, P, ...] with `actions[b]` as the action of `players[b]` and zeros elsewhere."""
    spread = np.zeros((len(players), num_players, *actions.shape[1:]), actions.dtype)
    spread[np.arange(len(players)), players] = actions
    return spread
