# SPDX-License-Identifier: Apache-2.0
"""What a league has come to at the end of a run: its entries of result.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from veldt.league.manager import lowest_against_own_past, win_rate_matrix
from veldt.league.measures import Past
from veldt.league.options import LeagueOptions
from veldt.league.pool import ModelPool
from veldt.league.state import LEAGUE, LeagueState
from veldt.league.strength import Strength
from veldt.telemetry.result import OwnMeasures
from veldt.topology import Topology
from veldt.types import Parameters


class HasLeague(Protocol):
    """A Config of an architecture with a league."""

    @property
    def league(self) -> LeagueOptions: ...


def league_state(vector: np.ndarray, options: LeagueOptions) -> LeagueState:
    """The state of a league from the vector of its board, also that in a checkpoint."""
    return LeagueState.from_vector(
        vector.copy(), len(options.kinds), options.capacity, options.payoff_decay
    )


def league_measures(
    config: HasLeague, topology: Topology, boards: Callable[[str], Parameters], run_dir: Path
) -> OwnMeasures:
    """The entries "league" and "nash_conv", and the model that measured best during the run.

    Returns of training games say nothing about strength, because the opponents get better, too."""
    network, pool = topology.network, ModelPool(run_dir)
    state = league_state(boards(LEAGUE).vector, config.league)
    last, game, measured = boards(topology.weights[0]).vector, network.spec.id, {}
    if Strength.can_measure(game, network) and np.isfinite(last).all():
        measured = Strength(game, network)(last, Past(pool, state))
    found, best, best_entry = pool.read_best(), None, None
    if found is not None:
        vector, facts = found
        env_steps = int(facts["env_steps"])
        best = (facts["merit"], Parameters(vector, int(facts["version"])), env_steps)
        # Measured again, because the pool has grown since.
        again = Strength(game, network)(vector, Past(pool, state))
        best_entry = {"env_steps": env_steps, "measures": again}
    entries = {
        "league": {
            "players": len(state.models),
            "frozen": state.num_frozen,
            "games": state.games,
            "elo": state.elo.round(1).tolist(),
            "kinds": state.roster.kinds,
            "win_rates": win_rate_matrix(state).round(3).tolist(),
            "lowest_win_rate_against_own_past": lowest_against_own_past(state),
            "measures": measured,
            "best": best_entry,
        }
    }
    if "nash_conv.last" in measured:
        entries["nash_conv"] = {key: measured[f"nash_conv.{key}"] for key in ("last", "mixture")}
    return OwnMeasures(entries, best)
