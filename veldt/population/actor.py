# SPDX-License-Identifier: Apache-2.0
"""An actor whose environments are played by several policies, and who tells how each one did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.environments.reward_components import read_components
from veldt.networks import make_distribution
from veldt.population.orders import POLICY, Standings
from veldt.ports import ExperienceSink, ParameterSource
from veldt.roles.actor import Actor
from veldt.roles.environment_group import EnvironmentGroup
from veldt.roles.policies.shared_memory import RequestPort
from veldt.types import REWARD_COMPONENTS, ActionSpec, PolicyReply, Slot


@dataclass(frozen=True)
class CastingConfig:
    """Which policies play where: `policy` in all environments of this actor, or, without it, one
    for each environment, fixed or drawn anew for each episode."""

    num_policies: int
    by_episode: bool = True
    policy: int | None = None
    reward_components: tuple[str, ...] = ()


class Cast:
    """The policy that plays in each environment of a group, and its generation when it began."""

    def __init__(
        self,
        config: CastingConfig,
        random: np.random.Generator,
        standings: Standings,
        first_environment: int,
        num_envs: int,
    ) -> None:
        self._config, self._random, self._standings = config, random, standings
        environments = first_environment + np.arange(num_envs)
        self.policies = environments % config.num_policies
        if config.policy is not None:
            self.policies[:] = config.policy
        self.generations = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)

    def episodes_end(self, over: np.ndarray) -> None:
        self._over |= over

    def episodes_begin(self, first: np.ndarray) -> None:
        """Draw policies where a game that was over begins again; a lost life is no new game."""
        begins = np.flatnonzero(self._over & first)
        if not begins.size:
            return
        if self._config.by_episode and self._config.policy is None:
            drawn = self._random.integers(self._config.num_policies, size=begins.size)
            self.policies[begins] = drawn
        self.generations[begins] = self._standings.generations[self.policies[begins]]
        self._over[begins] = False


class PopulationActor(Actor):
    """Writes beside each row which policy it asks, and sends returns and steps of each policy to
    the population's controller once per trajectory."""

    def __init__(
        self,
        context: NodeContext,
        *,
        casting: CastingConfig,
        scores: ExperienceSink,
        standings: list[ParameterSource],
        **arguments: Any,
    ) -> None:
        super().__init__(context, **arguments)
        self._scores, self._components = scores, casting.reward_components
        width, first = self._groups[0].environment.num_envs, context.index * arguments["num_envs"]
        random, self._standings = context.random("casting"), Standings(standings)
        self._casts = [
            Cast(casting, random, self._standings, first + group.index * width, width)
            for group in self._groups
        ]
        self._episodes: list[tuple[int, int, float]] = []
        """(policy, generation, return) of finished episodes that were not sent yet."""
        self._steps = np.zeros(casting.num_policies, np.int64)

    def _ask(self, group: EnvironmentGroup) -> None:
        cast = self._casts[group.index]
        cast.episodes_begin(group.environment.first)
        if POLICY in group.arrays:
            group.arrays[POLICY][group.row] = cast.policies
        super()._ask(group)

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        super()._count(group, step)
        cast = self._casts[group.index]
        played = cast.policies[~step.ignored]
        self._steps += np.bincount(played, minlength=self._steps.size)
        if step.episode_returns.size:
            own = zip(cast.policies[step.over], cast.generations[step.over], strict=True)
            ended = zip(own, step.episode_returns, strict=True)
            self._episodes += [(int(p), int(g), float(total)) for (p, g), total in ended]
        cast.episodes_end(step.over)
        if self._components:
            row = group.arrays[REWARD_COMPONENTS][group.row - 1]
            read_components(group.environment.info, self._components, step, row)

    def _finish(self, group: EnvironmentGroup) -> None:
        super()._finish(group)
        # An episode that begins before this is heard of counts as one of the policy before.
        self._standings.refresh()
        slot = self._scores.reserve()
        if slot is None:
            return  # the controller is behind; it hears of this with the next trajectory
        sent = self._episodes[: slot["policy"].size]
        slot["count"][0] = len(sent)
        for name, values in zip(
            ("policy", "generation", "episode_return"), zip(*sent, strict=True), strict=False
        ):
            slot[name][: len(sent)] = values
        slot["env_steps"][:] = self._steps
        self._scores.commit(slot)
        del self._episodes[: len(sent)]
        self._steps[:] = 0


@dataclass(frozen=True)
class RemotePoliciesConfig:
    """How an actor acts without networks when it has several policies to ask."""

    action: ActionSpec
    distribution: str = "auto"

    def __call__(
        self, context: NodeContext, ports: list[RequestPort], widths: list[int]
    ) -> RemotePolicies:
        return RemotePolicies(ports, len(widths), self)


class RemotePolicies:
    """Sends a row's number to each policy that has a column in it; the row is answered when all of
    them have written what they know into their columns."""

    def __init__(
        self, ports: list[RequestPort], num_groups: int, config: RemotePoliciesConfig
    ) -> None:
        self._ports = ports
        self._distribution = make_distribution(config.action, config.distribution)
        self._asked: list[tuple[Slot, int] | None] = [None] * num_groups
        self._missing: list[set[int]] = [set() for _ in range(num_groups)]

    def refresh(self, minimum_version: int = 0) -> bool:
        return True  # the servers always answer with their newest weights

    def request(self, group: int, slot: Slot, row: int) -> None:
        self._asked[group] = (slot, row)
        policies = np.unique(slot[POLICY][row]).tolist()
        self._missing[group] = set(policies)
        for policy in policies:
            self._ports[policy].send(slot, row)

    def reply(self, group: int) -> PolicyReply | None:
        for policy, port in enumerate(self._ports):
            self._collect(policy, port)
        asked = self._asked[group]
        if asked is None or self._missing[group]:
            return None
        self._asked[group] = None
        slot, row = asked
        action = slot["action"][row]
        versions = slot["parameter_version"][row]
        return PolicyReply(action, self._distribution.env_action(action), {}, versions)

    def _collect(self, policy: int, port: RequestPort) -> None:
        while (answer := port.answered()) is not None:
            for group, asked in enumerate(self._asked):
                # An answer to an earlier incarnation of this actor matches no open question.
                if asked is not None and (asked[0].index, asked[1]) == answer:
                    self._missing[group].discard(policy)
