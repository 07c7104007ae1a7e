# SPDX-License-Identifier: Apache-2.0
"""What a league has come to: for result.json, and for those who play against it later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from veldt.backends.base import Backend
from veldt.league.manager import lowest_against_own_past, win_rate_matrix
from veldt.league.measures import Past
from veldt.league.options import LeagueOptions
from veldt.league.pool import ModelPool
from veldt.league.state import LEAGUE, LeagueState
from veldt.league.strength import Strength
from veldt.run.best import BestWeights, Score
from veldt.run.plan import Plan
from veldt.telemetry.result import RunResult
from veldt.types import Parameters


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
    best = _measured_best(plan, Path(result.run_dir), state)
    result.league = {
        "players": len(state.models),
        "frozen": state.num_frozen,
        "games": state.games,
        "elo": state.elo.round(1).tolist(),
        "kinds": state.roster.kinds,
        "win_rates": win_rate_matrix(state).round(3).tolist(),
        "lowest_win_rate_against_own_past": lowest_against_own_past(state),
        "measures": measured,
        "best": best,
    }
    if "nash_conv.last" in measured:
        result.nash_conv = {key: measured[f"nash_conv.{key}"] for key in ("last", "mixture")}


def _measured_best(plan: Plan, run_dir: Path, state: LeagueState) -> dict[str, Any] | None:
    """The best model that was measured during the run, measured again beside the present pool."""
    pool, network = ModelPool(run_dir), plan.topology.network
    found = pool.read_best()
    if found is None:
        return None
    vector, facts = found
    strength = Strength(plan.problem.environment.name, network)
    measures = strength(vector, Past(pool, state))
    return {"env_steps": int(facts["env_steps"]), "measures": measures}


def keep_best_of_league(plan: Plan, run_dir: Path, best: BestWeights) -> bool:
    """A league's best weights are those that measured best: what training games return says nothing
    where players get better together. Whether this is a league."""
    if not isinstance(plan.config, HasLeague):
        return False
    found = ModelPool(run_dir).read_best()
    if found is not None:
        vector, facts = found
        weights = Parameters(vector, int(facts["version"]))
        best.keep(Score(facts["merit"], 0.0, True), weights, int(facts["env_steps"]))
    best.write()
    return True
