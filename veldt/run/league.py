# SPDX-License-Identifier: Apache-2.0
"""What a league has come to: for result.json, and for those who play against it later."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from veldt.backends.base import Backend
from veldt.league.manager import lowest_against_own_past, win_rate_matrix
from veldt.league.measures import Past
from veldt.league.options import LeagueOptions
from veldt.league.pool import ModelPool
from veldt.league.state import LEAGUE, LeagueState
from veldt.league.strength import Strength
from veldt.run.plan import Plan
from veldt.telemetry.result import RunResult


@runtime_checkable
class HasLeague(Protocol):
    """A Config of an architecture with a league."""

    @property
    def league(self) -> LeagueOptions: ...


def league_state(vector: np.ndarray, options: LeagueOptions) -> LeagueState:
    """What lies on the board LEAGUE, also in a checkpoint."""
    return LeagueState.from_vector(
        vector.copy(), len(options.kinds), options.capacity, options.payoff_decay
    )


def add_league_result(result: RunResult, plan: Plan, backend: Backend) -> None:
    """The entries "league" and "nash_conv", measured with the last weights; nothing elsewhere."""
    if not isinstance(plan.config, HasLeague):
        return
    state = league_state(backend.parameters(LEAGUE).vector, plan.config.league)
    last = backend.parameters(plan.topology.weights[0]).vector
    name, network, measured = plan.problem.environment.name, plan.topology.network, {}
    if Strength.can_measure(name, network) and np.isfinite(last).all():
        measured = Strength(name, network)(last, Past(ModelPool(Path(result.run_dir)), state))
    result.league = {
        "players": len(state.models),
        "frozen": state.num_frozen,
        "games": state.games,
        "elo": state.elo.round(1).tolist(),
        "kinds": state.roster.kinds,
        "win_rates": win_rate_matrix(state).round(3).tolist(),
        "lowest_win_rate_against_own_past": lowest_against_own_past(state),
        "measures": measured,
    }
    if "nash_conv.last" in measured:
        result.nash_conv = {key: measured[f"nash_conv.{key}"] for key in ("last", "mixture")}
