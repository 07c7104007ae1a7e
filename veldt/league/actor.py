# SPDX-License-Identifier: Apache-2.0
"""An actor that plays matches: one seat of each game learns, opponents of the league have the
others."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.games import make_game
from veldt.games.seats import LearningSeat
from veldt.league.opponents import Opponents
from veldt.roles.actor import Actor, EnvironmentGroup


@dataclass(eq=False, kw_only=True)
class LeagueActor(Actor):
    """Every row is a decision of the learning player; it changes seats from game to game. Results
    go to the manager once per trajectory."""

    opponents: Opponents

    def _make_groups(self, context: NodeContext) -> list[EnvironmentGroup]:
        factory, width = self.environments.factory, self.environments.width
        seed = context.derived_seed("environment-0")
        games = make_game(factory.name, width, **dict(factory.options))
        self.opponents.open(context, width, games.spec.num_players)
        environment = factory.wrapping(LearningSeat(games, self.opponents), seed)
        environment.reset()
        self._unreported_steps = 0
        return [EnvironmentGroup(0, environment)]

    def _begin(self, group: EnvironmentGroup) -> bool:
        if not super()._begin(group):
            return False
        self.opponents.refresh()
        return True

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        super()._count(group, step)
        self._unreported_steps += step.env_steps

    def _finish(self, group: EnvironmentGroup) -> None:
        super()._finish(group)
        if self.opponents.report(self._unreported_steps):
            self._unreported_steps = 0
