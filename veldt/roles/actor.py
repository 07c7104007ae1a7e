# SPDX-License-Identifier: Apache-2.0
"""The one actor loop of every architecture.

For each group of environments: take the policy's reply if it is there, step, write the row, ask
again. With two groups, one steps while the other waits for its actions (double buffering): where
the environments have a thread of their own, they take turns on it and it never rests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from veldt.context import NodeContext
from veldt.environments import Environments, Step
from veldt.environments.resilience import EnvironmentFailure
from veldt.ports import ExperienceSink, Policy
from veldt.role import Role
from veldt.roles.annealing import Gate
from veldt.roles.environment_group import EnvironmentGroup
from veldt.roles.update_wait import UpdateWait
from veldt.types import (
    DISCOUNTED_RETURN,
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
)

_MOST_BAD_TRAJECTORIES = 20  # in a row, of one group


@dataclass(eq=False)
class Actor(Role):
    """Steps environments and fills the slots of `sink`, one trajectory after the other.

    `synchronous`: each trajectory begins only from weights that have learned from the one before
    (A2C's barrier). `gamma` is only used for the statistics of return normalisation."""

    niceness: ClassVar[int] = 5  # actors may each wait a little; they all wait for a learner

    environments: Environments
    policy: Policy
    sink: ExperienceSink
    synchronous: bool = False
    gamma: float = 0.99
    gate: Gate | None = None

    def open(self, context: NodeContext) -> None:
        self._context, environments = context, self.environments
        self._turns: list[EnvironmentGroup] = []
        self._groups = self._make_groups(context)
        self.policy.open(context, [environments.width] * environments.num_groups)
        if self.gate is not None:
            self.gate.open(context)
        telemetry = context.telemetry
        self._inferring, self._stepping = telemetry.stage("infer"), telemetry.stage("step")
        self._env_steps = telemetry.counter("env_steps")
        self._trajectories = telemetry.counter("trajectories")
        self._acting_version = telemetry.gauge("acting_version")
        self._aborted_episodes = telemetry.counter("aborted_episodes")
        self._bad_trajectories = telemetry.counter("dropped.bad_trajectory")
        if self.synchronous:
            for group in self._groups:
                group.wait = UpdateWait(telemetry)

    def _make_groups(self, context: NodeContext) -> list[EnvironmentGroup]:
        environments = self.environments
        # Who takes turns waits for the one before: not with groups that must wait for each other's
        # data, nor with a gate that lets the others finish.
        may_take_turns = not self.synchronous and self.gate is None
        made = (context, environments.factory, environments.width, environments.num_groups)
        self._turns = EnvironmentGroup.make_turns(*made) if may_take_turns else []
        return self._turns or EnvironmentGroup.make_all(*made)

    def knows_its_version(self) -> bool:
        return self.policy.knows_its_version()

    def lagging(self, updates: int) -> Actor | None:
        policy = self.policy.lagging(updates)
        return None if policy is None else replace(self, policy=policy)

    def step(self) -> bool:
        if self._turns:
            return self._take_turn()
        worked = False
        for group in self._groups:
            worked |= self._advance(group)
        return worked

    def _advance(self, group: EnvironmentGroup) -> bool:
        if not self._send(group):
            return False
        self._receive(group)
        return True

    def _take_turn(self) -> bool:
        """Let one group set out and wait for the next one, which did so before it."""
        if not self._send(self._turns[0]):
            return False
        self._turns = [*self._turns[1:], self._turns[0]]
        following = self._turns[0]
        if following.reply is None:
            following.environment.reset()
        else:
            self._receive(following)
        return True

    def _send(self, group: EnvironmentGroup) -> bool:
        """Let a group's environments carry out the policy's reply, if it is there."""
        if not group.begun and not self._begin(group):
            return False
        reply = self.policy.reply(group.index)
        if reply is None:
            return False
        group.write_reply(reply)
        group.environment.send(reply.env_action)
        group.reply = reply
        return True

    def _begin(self, group: EnvironmentGroup) -> bool:
        """Row 0 of a new trajectory, if there is room for it and the weights are as asked."""
        if group.slot is None:
            if self.gate is not None and not self.gate.is_open():
                return False
            group.slot = self.sink.reserve()
        if group.slot is None or not self.policy.refresh(group.minimum_version):
            return False
        group.begin()
        self._stamp(group)
        self._ask(group)
        return True

    def _ask(self, group: EnvironmentGroup) -> None:
        assert group.slot is not None
        with self._inferring:
            self.policy.request(group.index, group.slot, group.row)

    def _receive(self, group: EnvironmentGroup) -> None:
        with self._stepping:
            step = group.environment.receive()
        group.write_step(step)
        if DISCOUNTED_RETURN in group.arrays:
            returns = group.discounted_return(step, self.gamma)
            group.arrays[DISCOUNTED_RETURN][group.row] = returns
        group.row += 1
        group.write_observation()
        self._count(group, step)
        if group.row < group.num_steps:
            self._ask(group)
        else:
            self._finish(group)

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        self._env_steps.add(step.env_steps)
        if step.episode_returns.size:
            self._context.telemetry.episode(step.episode_returns, step.episode_lengths)
        if step.aborted_episodes:
            self._aborted_episodes.add(step.aborted_episodes)

    def _stamp(self, group: EnvironmentGroup) -> None:
        """Whose trajectory this is; a policy elsewhere needs to know it before the first row."""
        assert group.slot is not None
        provenance = group.slot.arrays["provenance"][0]
        provenance[PROVENANCE_ACTOR] = self._context.index * len(self._groups) + group.index
        provenance[PROVENANCE_INCARNATION] = self._context.incarnation
        provenance[PROVENANCE_SEQUENCE] = group.sequence

    def _finish(self, group: EnvironmentGroup) -> None:
        assert group.slot is not None
        group.sequence += 1  # also without a hand-over: nothing that follows continues what is lost
        group.begun = False
        if group.wait is not None:
            group.wait.trajectory_finished()
        if group.is_bad():
            self._drop(group)
            return
        version = int(group.arrays["parameter_version"][0, 0])
        self._acting_version.set(version)
        if self.synchronous:
            group.minimum_version = version + 1
        self.sink.commit(group.slot)
        self._trajectories.add()
        group.slot = None

    def _drop(self, group: EnvironmentGroup) -> None:
        """Write the next trajectory over one that holds what its environments did not say."""
        self._bad_trajectories.add()
        if group.bad_in_a_row >= _MOST_BAD_TRAJECTORIES:
            raise EnvironmentFailure(
                f"the environment '{group.environment.spec.id}' gave rewards or observations that"
                f" are not finite in {group.bad_in_a_row} trajectories in a row"
            )

    def close(self) -> None:
        for group in self._groups:
            group.environment.close()
