# SPDX-License-Identifier: Apache-2.0
"""Options of a league."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from veldt.errors import ConfigurationError
from veldt.league.matchmaking import LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER
from veldt.league.state import LeagueState
from veldt.options.checked import Bounds, Count, Options

_ALPHASTAR_EXPLOITERS = (1, 2)  # main exploiters and league exploiters beside one main player
Exploiters = Annotated[int, Bounds(0, 16)]


@dataclass(frozen=True)
class LeagueOptions(Options):
    """Who learns, against whom, and when a learning player is frozen into the pool."""

    matchmaking: Literal["latest", "uniform", "pfsp", "alphastar"] = "pfsp"
    """Opponents: latest (itself), uniform or pfsp over the frozen, or alphastar's rules by kind."""
    pfsp_weighting: Literal["squared", "variance", "linear", "linear_capped"] = "squared"
    """What pfsp prefers, as a function of the win rate; squared: those who are hard to beat."""
    self_play_share: Annotated[float, Bounds(0, 1)] = 0.8
    """Share of games against itself (uniform and pfsp)."""
    main_exploiters: Exploiters | None = None
    """Learning players that only play the main one; none: 1 with alphastar, else 0."""
    league_exploiters: Exploiters | None = None
    """Learning players that play everybody who is frozen; none: 2 with alphastar, else 0."""
    freeze_env_steps: Count = 150_000
    """Env steps of a player until it is frozen; with alphastar twice as many at the latest."""
    max_frozen: Annotated[int, Bounds(1, 1000)] = 32
    """Frozen players in the pool; when it is full, the oldest one leaves."""
    payoff_decay: Annotated[float, Bounds(0, 1, above=True)] = 0.99
    """What each new result of a pair leaves of its older ones."""
    opponents_at_once: Annotated[int, Bounds(1, 1000)] = 2
    """Opponents that an actor plays side by side; each is one more forward pass per row."""
    resident_models: Annotated[int, Bounds(1, 1000)] = 16
    """Models that an actor keeps in memory; those not played for longest are read again later."""
    opponent_noise: Annotated[float, Bounds(0, 1)] = 0.0
    """Share of the opponents' moves that are drawn at random: a policy that has become certain goes
    on seeing what follows from mistakes."""
    scripted_opponents: tuple[str, ...] = ()
    """Functions (module:function) that play by a rule, in the pool from the start: observations,
    legal actions and a random generator in, probabilities out."""
    measure_env_steps: Count = 250_000
    """Env steps of the main player between two measurements of its strength."""

    def __post_init__(self) -> None:
        super().__post_init__()
        exploiters = (self.main_exploiters or 0) + (self.league_exploiters or 0)
        if exploiters and self.matchmaking != "alphastar":
            raise ConfigurationError(
                f"exploiters follow the rules of alphastar, not of {self.matchmaking}; use"
                " --matchmaking alphastar, or no exploiters"
            )
        if self.resident_models < self.opponents_at_once:
            raise ConfigurationError(
                f"{self.opponents_at_once} opponents at once do not fit into"
                f" {self.resident_models} resident models; raise --resident-models"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each learning player is; the main one is the first."""
        own = _ALPHASTAR_EXPLOITERS if self.matchmaking == "alphastar" else (0, 0)
        given = (self.main_exploiters, self.league_exploiters)
        hunters, roamers = (n if g is None else g for n, g in zip(own, given, strict=True))
        return (MAIN, *[MAIN_EXPLOITER] * hunters, *[LEAGUE_EXPLOITER] * roamers)

    @property
    def capacity(self) -> int:
        """Players that there may be at most."""
        return len(self.kinds) + len(self.scripted_opponents) + self.max_frozen

    def first_state(self) -> LeagueState:
        """What the manager knows before the first game."""
        scripted = len(self.scripted_opponents)
        return LeagueState.start(self.kinds, self.payoff_decay, scripted)
