# SPDX-License-Identifier: Apache-2.0
"""Several players in one environment: the one interface of native games and PettingZoo.

A VectorGame steps B games of P players together. Turn-based and simultaneous games differ only in
`to_act`: who has to choose an action now. It knows nothing of policies, opponents or trajectories;
adapters (seats.py) turn it into columns of rows, by this contract:

- **A row is one decision of one player**: what it saw, what was allowed, what it did. A column
  holds the rows of one seat of one game, in order; two players never share a column in one game.
- **The reward of a row** is the sum of what its player received from its action up to its next
  decision or to its end, the moves of others in between included. What a player receives before
  its first decision or after its end belongs to no row; it counts for the game's result only.
- **The end of a row**: `terminated` or `truncated` is set on the last decision of a player, also
  when it was another player's move that ended the game. A player may leave before the game ends;
  its column then has no decisions until the next game.
- **One learning player** (LearningSeat): column b holds the decisions of game b's learning seat,
  and nothing else. Opponents move inside the step, as often as it takes. A game that ends before
  the learning player had a decision has a result but no row. Seats and opponents change between
  two games only.
- **One column per seat** (SeatColumns): column b * P + p is player p of game b. All columns step
  together, so a player who is not to act gets a *waiting row*: one action is allowed, so there is
  nothing to learn about it and the policy's ratio is 1. Rewards and ends are on the row in which
  they happen; with a discount of 1 that is the same return as above. A move is one env step,
  whoever waits for it: P rows of a turn-based game are one, P rows of a simultaneous one are P.
- **Ignored rows** are Veldt's reset rows: with next-step resets the step after an end begins the
  next game, its action is not used, its reward is 0, and it is no env step.
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
    """What a step brought. B games, P players."""

    rewards: np.ndarray
    """float32 [B, P]: what each player received in this step, whoever moved."""
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

    The same seed gives the same chance events in game b's episode e, whatever the other games do.
    """

    spec: GameSpec
    num_games: int

    @property
    @abstractmethod
    def to_act(self) -> np.ndarray:
        """bool [B, P]: who must choose an action. Nobody where a game waits for its reset step."""

    @property
    def turn(self) -> np.ndarray:
        """int [B]: the player to act in a turn-based game; 0 where nobody is."""
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
        """What player `players[n]` knows in game `games[n]`, its turn or not: leaf -> [N, ...].
        `games`: numbers of games; None: all."""

    @abstractmethod
    def legal(self, players: np.ndarray, games: np.ndarray | None = None) -> np.ndarray:
        """bool [N, A]: what `players[n]` may do in game `games[n]`; only action 0 where it is not
        to act. Only for games with masks."""

    @abstractmethod
    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        """Play `actions` [B, P, ...]; entries of players who are not to act are not looked at.
        `games`, bool [B]: only these are stepped, the others stand still with rewards of 0."""

    def state(self) -> dict[str, np.ndarray] | None:
        """All that the games are in, for an exact resume; None where they cannot be saved."""
        return None

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError(f"{self.spec.id} cannot be brought back")

    def close(self) -> None:  # noqa: B027 - most games are arrays and hold nothing
        """Give back what the games hold."""

    def observe_all(self) -> dict[str, np.ndarray]:
        """What every player knows: leaf -> [B, P, ...]."""
        seen = [self.observe(players) for players in self._each_player()]
        return {
            leaf.name: np.stack([one[leaf.name] for one in seen], axis=1)
            for leaf in self.spec.observation
        }

    def legal_all(self) -> np.ndarray:
        """bool [B, P, A]: what every player may do."""
        return np.stack([self.legal(players) for players in self._each_player()], axis=1)

    def _each_player(self) -> list[np.ndarray]:
        return [np.full(self.num_games, player) for player in range(self.spec.num_players)]


def actions_of(players: np.ndarray, actions: np.ndarray, num_players: int) -> np.ndarray:
    """[B, P, ...] with `actions[b]` as the action of `players[b]` and zeros elsewhere."""
    spread = np.zeros((len(players), num_players, *actions.shape[1:]), actions.dtype)
    spread[np.arange(len(players)), players] = actions
    return spread
