# SPDX-License-Identifier: Apache-2.0
"""An actor whose environments are played by several policies, and who tells how each one did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.environments.infos import read_components
from veldt.networks import NetworkFactory, make_distribution
from veldt.population.orders import POLICY, Generations
from veldt.ports import ExperienceSink, ParameterSource, Policy, RequestClient
from veldt.role import Part
from veldt.roles.actor import Actor, EnvironmentGroup
from veldt.types import REWARD_COMPONENTS, PolicyReply, Slot


@dataclass(eq=False)
class Casting(Part):
    """Which policies play where, and whom to tell how they did: `policy` in all environments of
    this actor, or, without it, one for each environment, fixed or drawn anew for each episode."""

    num_policies: int
    scores: ExperienceSink
    generations: list[ParameterSource]
    by_episode: bool = True
    policy: int | None = None
    reward_components: tuple[str, ...] = ()


class Assignment:
    """The policy that plays in each environment of a group, and its generation when it began."""

    def __init__(
        self,
        casting: Casting,
        random: np.random.Generator,
        known: Generations,
        first_environment: int,
        num_envs: int,
    ) -> None:
        self._casting, self._random, self._known = casting, random, known
        environments = first_environment + np.arange(num_envs)
        self.policies = environments % casting.num_policies
        if casting.policy is not None:
            self.policies[:] = casting.policy
        self.generations = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)

    def episodes_end(self, over: np.ndarray) -> None:
        self._over |= over

    def episodes_begin(self, first: np.ndarray) -> None:
        """Draw policies where a game that was over begins again; a lost life is no new game."""
        begins = np.flatnonzero(self._over & first)
        if not begins.size:
            return
        if self._casting.by_episode and self._casting.policy is None:
            drawn = self._random.integers(self._casting.num_policies, size=begins.size)
            self.policies[begins] = drawn
        self.generations[begins] = self._known.generations[self.policies[begins]]
        self._over[begins] = False


@dataclass(eq=False, kw_only=True)
class PopulationActor(Actor):
    """Writes beside each row which policy it asks, and sends returns and steps of each policy to
    the population's controller once per trajectory."""

    casting: Casting

    def open(self, context: NodeContext) -> None:
        super().open(context)
        width, first = self.environments.width, context.index * self.environments.num_envs
        random, self._known = context.random("casting"), Generations(self.casting.generations)
        self._assignments = [
            Assignment(self.casting, random, self._known, first + group.index * width, width)
            for group in self._groups
        ]
        self._episodes: list[tuple[int, int, float]] = []
        """(policy, generation, return) of finished episodes that were not sent yet."""
        self._steps = np.zeros(self.casting.num_policies, np.int64)

    def _ask(self, group: EnvironmentGroup) -> None:
        assigned = self._assignments[group.index]
        assigned.episodes_begin(group.environment.first)
        if POLICY in group.arrays:
            group.arrays[POLICY][group.row] = assigned.policies
        super()._ask(group)

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        super()._count(group, step)
        assigned = self._assignments[group.index]
        played = assigned.policies[~step.ignored]
        self._steps += np.bincount(played, minlength=self._steps.size)
        if step.episode_returns.size:
            own = zip(assigned.policies[step.over], assigned.generations[step.over], strict=True)
            ended = zip(own, step.episode_returns, strict=True)
            self._episodes += [(int(p), int(g), float(total)) for (p, g), total in ended]
        assigned.episodes_end(step.over)
        components = self.casting.reward_components
        if components:
            row = group.arrays[REWARD_COMPONENTS][group.row - 1]
            read_components(group.environment.info, components, step, row)

    def _finish(self, group: EnvironmentGroup) -> None:
        super()._finish(group)
        # An episode that begins before this is heard of counts as one of the policy before.
        self._known.refresh()
        slot = self.casting.scores.reserve()
        if slot is None:
            return  # the controller is behind; it hears of this with the next trajectory
        sent = self._episodes[: slot["policy"].size]
        slot["count"][0] = len(sent)
        for name, values in zip(
            ("policy", "generation", "episode_return"), zip(*sent, strict=True), strict=False
        ):
            slot[name][: len(sent)] = values
        slot["env_steps"][:] = self._steps
        self.casting.scores.commit(slot)
        del self._episodes[: len(sent)]
        self._steps[:] = 0


@dataclass(eq=False)
class SharedMemoryPolicies(Policy):
    """An actor without networks that has several policies to ask: sends a row's number to each
    policy that has a column in it; the row is answered when all of them have written what they know
    into their columns."""

    network: NetworkFactory
    requests: list[RequestClient]

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        config, action = self.network.config, self.network.spec.action
        self._distribution = make_distribution(action, config.distribution)
        self._asked: list[tuple[Slot, int] | None] = [None for _ in widths]
        self._missing: list[set[int]] = [set() for _ in widths]

    def request(self, group: int, slot: Slot, row: int) -> None:
        self._asked[group] = (slot, row)
        policies = np.unique(slot[POLICY][row]).tolist()
        self._missing[group] = set(policies)
        for policy in policies:
            self.requests[policy].send(slot, row)

    def reply(self, group: int) -> PolicyReply | None:
        for policy, port in enumerate(self.requests):
            self._collect(policy, port)
        asked = self._asked[group]
        if asked is None or self._missing[group]:
            return None
        self._asked[group] = None
        slot, row = asked
        action = slot["action"][row]
        versions = slot["parameter_version"][row]
        return PolicyReply(action, self._distribution.env_action(action), {}, versions)

    def _collect(self, policy: int, port: RequestClient) -> None:
        while (answer := port.answered()) is not None:
            for group, asked in enumerate(self._asked):
                # An answer to an earlier incarnation of this actor matches no open question.
                if asked is not None and (asked[0].index, asked[1]) == answer:
                    self._missing[group].discard(policy)
