# SPDX-License-Identifier: Apache-2.0
"""How strong a player is: exact measures where a game allows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.games.solvers import (
    PolicyFunction,
    distance_to_equilibrium,
    information_tree,
    mixture,
    nash_conv,
    tic_tac_toe_losses,
)
from veldt.league.state import LEAGUE, LeagueOptions, LeagueState, ModelPool
from veldt.networks import FlatParameters, NetworkFactory, PolicyValueOutput
from veldt.ports import ParameterSource
from veldt.role import Part
from veldt.telemetry.record import MEASURES_LOG
from veldt.telemetry.result import RunResult
from veldt.types import ACTION_MASK, Parameters

ROCK_PAPER_SCISSORS, TIC_TAC_TOE = "veldt:rock_paper_scissors", "veldt:tic_tac_toe"
MEASURED = ("veldt:kuhn", "veldt:leduc", ROCK_PAPER_SCISSORS, TIC_TAC_TOE)


def policy_of(network: NetworkFactory, vector: np.ndarray) -> PolicyFunction:
    """A flat vector as a function from observations to probabilities."""
    made = network.blank().eval()
    FlatParameters(made).load(vector)

    def probabilities(observations: np.ndarray, legal: np.ndarray) -> np.ndarray:
        seen = {"observation": np.ascontiguousarray(observations, np.float32)}
        seen[ACTION_MASK] = np.ascontiguousarray(legal)
        tensors = {name: torch.from_numpy(array) for name, array in seen.items()}
        with torch.inference_mode():
            first = torch.ones(len(legal), dtype=torch.bool)
            outputs, _ = made.step(tensors, made.initial_state(len(legal)), first)
            assert isinstance(outputs, PolicyValueOutput)
            return torch.softmax(outputs.logits.double(), dim=-1).numpy()

    return probabilities


def can_measure(game: str, network: NetworkFactory) -> bool:
    """Whether there is an exact measure; recurrent policies are no tables of probabilities."""
    return game in MEASURED and network.config.recurrent == "none"


def merit(measures: Mapping[str, float]) -> float:
    """One number for the last weights, the larger the better, by which the best are kept."""
    lost = ("minimax.losses_first", "minimax.losses_second", "nash_conv.last", "distance.last")
    return -float(sum(measures.get(name, 0.0) for name in lost))


def strength(
    game: str, network: NetworkFactory, last: np.ndarray, past: list[np.ndarray]
) -> dict[str, float]:
    """Exact measures by name: of the `last` weights and, where the game allows it, of a mixture.

    The mixture draws the last or one of the `past` models before each game."""
    if game == TIC_TAC_TOE:
        policy = policy_of(network, last)
        first, second = (tic_tac_toe_losses(policy, seat) for seat in (0, 1))
        return {"minimax.losses_first": first, "minimax.losses_second": second}
    if game == ROCK_PAPER_SCISSORS:
        seen, legal = np.ones((1, 1), np.float32), np.ones((1, 3), bool)
        rows = np.concatenate([policy_of(network, one)(seen, legal) for one in (*past, last)])
        both = (distance_to_equilibrium(rows[-1]), distance_to_equilibrium(rows))
        return dict(zip(("distance.last", "distance.mixture"), both, strict=True))
    tree = information_tree(game)
    tables = [tree.table(policy_of(network, one)) for one in (*past, last)]
    return {
        "nash_conv.last": nash_conv(tree, tables[-1]),
        "nash_conv.mixture": nash_conv(tree, mixture(tree, tables)),
    }


@dataclass(eq=False)
class Measures(Part):
    """Measures a league's main player while it learns: gauges, and RUN_DIR/league/measures.jsonl.

    Every so many env steps of the main player, if the game has an exact measure."""

    game: str
    network: NetworkFactory
    weights: ParameterSource
    """Of the main player."""
    every_env_steps: int

    def open(self, context: NodeContext) -> None:
        self._telemetry, self._pool = context.telemetry, ModelPool(context.run_dir)
        self._can_measure = can_measure(self.game, self.network)
        self._vector = np.empty(self.network.initial_vector().size, np.float32)
        self._measuring = context.telemetry.stage("measure")
        self._period: int | None = None
        best = self._pool.read_best()
        self._merit = None if best is None else best[1].get("merit")

    def update(self, state: LeagueState) -> None:
        """Measure when a period has ended, but not one that ended before this process began."""
        period = int(state.env_steps[0]) // self.every_env_steps
        if not self._can_measure or period == self._period:
            return
        began, self._period = self._period is None, period
        if began and period:
            return
        with self._measuring:
            version = self.weights.pull(self._vector, newer_than=-1)
            past = [self._pool.read(model) for model in state.past_models()]
            found = strength(self.game, self.network, self._vector, past)
        for name, value in found.items():
            self._telemetry.gauge(f"league.{name}").set(value)
        env_steps, worth = int(state.env_steps.sum()), merit(found)
        self._pool.append(MEASURES_LOG, {"time": time.time(), "env_steps": env_steps, **found})
        if self._merit is None or worth > self._merit:
            self._merit = worth
            facts = {"merit": worth, "env_steps": env_steps, "version": version or 0}
            self._pool.write_best(self._vector, facts)


@dataclass(frozen=True)
class LeagueOutcome:
    """What a league adds to its run's result; an `Outcome` of its topology."""

    game: str
    network: NetworkFactory
    options: LeagueOptions

    def add_to(
        self, result: RunResult, parameters: Callable[[str], Parameters], run_dir: Path
    ) -> None:
        """The entries "league" and "nash_conv", measured with the last weights."""
        pool, newest = ModelPool(run_dir), parameters("weights")
        last = newest.vector
        state = self.options.state_of(parameters(LEAGUE).vector)
        past = [pool.read(model) for model in state.past_models()]
        measures, best = {}, pool.read_best()
        if can_measure(self.game, self.network) and np.isfinite(last).all():
            measures = strength(self.game, self.network, last, past)
            worth = merit(measures)
            if best is None or worth > best[1]["merit"]:
                env_steps = int(state.env_steps.sum())
                facts = {"merit": worth, "env_steps": env_steps, "version": newest.version}
                pool.write_best(last, facts)
                best = last, facts
        result.league = {
            "players": len(state.models),
            "frozen": state.num_frozen,
            "games": state.games,
            "elo": state.elo.round(1).tolist(),
            "kinds": state.roster.kinds,
            "win_rates": state.win_rates().round(3).tolist(),
            "lowest_win_rate_against_own_past": state.lowest_against_own_past(),
            "measures": measures,
            "best": None,
        }
        if best is not None:  # measured again with the present pool
            measured = strength(self.game, self.network, best[0], past)
            result.league["best"] = {"env_steps": int(best[1]["env_steps"]), "measures": measured}
        if "nash_conv.last" in measures:
            result.nash_conv = {key: measures[f"nash_conv.{key}"] for key in ("last", "mixture")}

    def best_weights(self, run_dir: Path) -> tuple[float, Parameters, int] | None:
        """Merit, weights and env steps of the model that measured best, because training returns
        do not show progress where all players improve together."""
        found = ModelPool(run_dir).read_best()
        if found is None:
            return None
        vector, facts = found
        return facts["merit"], Parameters(vector, int(facts["version"])), int(facts["env_steps"])
