# SPDX-License-Identifier: Apache-2.0
"""How strong a player and the mixture of its past are, as exactly as each game allows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from veldt.games.solvers import (
    PolicyFunction,
    distance_to_equilibrium,
    information_tree,
    mixture,
    nash_conv,
    tic_tac_toe_lines,
)
from veldt.networks import FlatParameters, NetworkFactory, PolicyValueOutput
from veldt.types import ACTION_MASK

POKER = ("veldt:kuhn", "veldt:leduc")
ROCK_PAPER_SCISSORS, TIC_TAC_TOE = "veldt:rock_paper_scissors", "veldt:tic_tac_toe"
MEASURED = (*POKER, ROCK_PAPER_SCISSORS, TIC_TAC_TOE)


class Players:
    """Flat vectors as policies, functions from observations to probabilities."""

    def __init__(self, network: NetworkFactory) -> None:
        self._network = network.make().eval()
        self._flat = FlatParameters(self._network)

    def policy(self, vector: np.ndarray) -> PolicyFunction:
        vector = vector.copy()

        def probabilities(observations: np.ndarray, legal: np.ndarray) -> np.ndarray:
            self._flat.load(vector)
            seen = {"observation": np.ascontiguousarray(observations, np.float32)}
            seen[ACTION_MASK] = np.ascontiguousarray(legal)
            tensors = {name: torch.from_numpy(array) for name, array in seen.items()}
            state = self._network.initial_state(len(legal))
            with torch.inference_mode():
                first = torch.ones(len(legal), dtype=torch.bool)
                outputs, _ = self._network.step(tensors, state, first)
                assert isinstance(outputs, PolicyValueOutput)
                return torch.softmax(outputs.logits.double(), dim=-1).numpy()

        return probabilities


class Strength:
    """Measures one player of a game exactly. Tables of frozen models are computed once."""

    def __init__(self, game: str, network: NetworkFactory) -> None:
        self._game, self._players = game, Players(network)
        self._tables: dict[int, np.ndarray] = {}

    @staticmethod
    def can_measure(game: str, network: NetworkFactory) -> bool:
        """Not a policy with a memory: its probabilities are no table over information states."""
        return game in MEASURED and network.config.recurrent == "none"

    @staticmethod
    def merit(measures: Mapping[str, float]) -> float:
        """One number for the last weights, the larger the better, by which the best are kept."""
        lost = ("minimax.losses_first", "minimax.losses_second", "nash_conv.last", "distance.last")
        return -float(sum(measures.get(name, 0.0) for name in lost))

    def __call__(self, last: np.ndarray, past: Mapping[int, np.ndarray]) -> dict[str, float]:
        """Numbers by name: of the `last` weights and, where the game allows it, of playing them or
        one of `past` (model -> weights), drawn before each game."""
        policy = self._players.policy(last)
        if self._game == TIC_TAC_TOE:
            first, second = (tic_tac_toe_lines(policy, seat).losses for seat in (0, 1))
            return {"minimax.losses_first": first, "minimax.losses_second": second}
        own, tables = self._table(policy), self._past_tables(past)
        if self._game == ROCK_PAPER_SCISSORS:
            rows = np.stack([*tables, own])[:, 0]
            both = (distance_to_equilibrium(own[0]), distance_to_equilibrium(rows))
            return dict(zip(("distance.last", "distance.mixture"), both, strict=True))
        tree = information_tree(self._game)
        mixed = mixture(tree, [*tables, own])
        return {
            "nash_conv.last": nash_conv(tree, own),
            "nash_conv.mixture": nash_conv(tree, mixed),
        }

    def _table(self, policy: PolicyFunction) -> np.ndarray:
        if self._game == ROCK_PAPER_SCISSORS:
            return policy(np.ones((1, 1), np.float32), np.ones((1, 3), bool))
        return information_tree(self._game).table(policy)

    def _past_tables(self, past: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        for gone in set(self._tables) - set(past):
            del self._tables[gone]
        for model in past:
            if model not in self._tables:
                self._tables[model] = self._table(self._players.policy(past[model]))
        return [self._tables[model] for model in past]
