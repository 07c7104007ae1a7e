# SPDX-License-Identifier: Apache-2.0
"""The one actor loop of every architecture.

For each group of environments: take the policy's reply if it is there, step, write the row, request
the next action. With two groups, one steps while the other waits for its actions (double
buffering).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from veldt.context import NodeContext
from veldt.environments import EnvironmentFactory, Environments, Step, VectorEnvironment
from veldt.environments.copies import EnvironmentFailure
from veldt.environments.parameters import ParameterReader, Values
from veldt.ports import ExperienceSink, ParameterSource, Policy
from veldt.role import Role
from veldt.roles.ga3c_tuner import Gate
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import (
    DISCOUNTED_RETURN,
    LAST_ACTION,
    LAST_REWARD,
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    PolicyReply,
    Slot,
)


class UpdateWait:
    """Counts seconds, and their share of the time since the first trajectory began."""

    def __init__(self, telemetry: NodeTelemetry) -> None:
        self._seconds = telemetry.counter("wait_for_update_seconds")
        self._share = telemetry.gauge("wait_for_update_share")
        self._waited_before = self._seconds.value  # by an earlier incarnation
        self._first_began: float | None = None
        self._finished = 0.0

    def trajectory_finished(self) -> None:
        self._finished = time.perf_counter()

    def trajectory_begins(self) -> None:
        now = time.perf_counter()
        if self._first_began is None:
            self._first_began = now
            return
        self._seconds.add(now - self._finished)
        waited = self._seconds.value - self._waited_before
        self._share.set(waited / (now - self._first_began))


_MOST_BAD_TRAJECTORIES = 20  # in a row, of one group


@dataclass
class EnvironmentGroup:
    """Writes what the environments show and answer into the rows of one slot after the other."""

    index: int
    environment: VectorEnvironment
    reply: PolicyReply | None = None
    """What the environments are carrying out; None before their first step."""
    slot: Slot | None = None
    begun: bool = False
    row: int = 0
    sequence: int = 0
    minimum_version: int = 0
    wait: UpdateWait | None = None
    bad_rows_seen: int = 0
    bad_in_a_row: int = 0
    """Trajectories with numbers that are not finite, since the last one without."""
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """Last action and reward, for networks that want them."""
    discounted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @staticmethod
    def make_all(
        context: NodeContext,
        factory: EnvironmentFactory,
        width: int,
        num_groups: int,
        parameters: Values | None = None,
    ) -> list[EnvironmentGroup]:
        """Groups that are stepped whenever their actions are there."""
        seeds = [context.derived_seed(f"environment-{index}") for index in range(num_groups)]
        groups = [EnvironmentGroup(i, factory.make(width, seed)) for i, seed in enumerate(seeds)]
        for group in groups:
            if parameters:
                group.environment.set_parameters(parameters)
            group.environment.reset()
        return groups

    @staticmethod
    def make_turns(
        context: NodeContext, factory: EnvironmentFactory, width: int, num_groups: int
    ) -> list[EnvironmentGroup]:
        """Groups that take turns on one thread, the first of them reset; none where that is not
        offered."""
        seed = context.derived_seed("environment-0")
        made = factory.make_groups(num_groups, width, seed) if num_groups > 1 else None
        if made is None:
            return []
        made[0].reset()
        return [EnvironmentGroup(index, environment) for index, environment in enumerate(made)]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        assert self.slot is not None
        return self.slot.arrays

    @property
    def num_steps(self) -> int:
        """Rows of a trajectory that are acted on; one more only bootstraps."""
        return len(self.arrays["first"]) - 1

    def begin(self) -> None:
        """Row 0 of a new trajectory."""
        if self.wait is not None:
            self.wait.trajectory_begins()
        self.begun, self.row = True, 0
        if LAST_ACTION in self.arrays and not self.past:
            for name in (LAST_ACTION, LAST_REWARD):
                self.past[name] = np.zeros_like(self.arrays[name][0])
        self.write_observation()

    def write_observation(self) -> None:
        arrays, environment = self.arrays, self.environment
        for name, value in environment.observations.items():
            arrays[name][self.row] = value
        for name, value in self.past.items():
            arrays[name][self.row] = value
        arrays["first"][self.row] = environment.first

    def write_reply(self, reply: PolicyReply) -> None:
        arrays, row = self.arrays, self.row
        arrays["action"][row] = reply.action
        for name, value in reply.outputs.items():
            arrays[name][row] = value
        arrays["parameter_version"][row] = reply.version

    def write_step(self, step: Step) -> None:
        arrays, row, reply = self.arrays, self.row, self.reply
        assert reply is not None
        arrays["reward"][row] = step.reward
        arrays["terminated"][row] = step.terminated
        arrays["truncated"][row] = step.truncated
        arrays["ignored"][row] = step.ignored
        if step.final_observations is not None:
            for name, value in step.final_observations.items():
                arrays[name][row] = value
        if self.past:
            self.past[LAST_ACTION][:], self.past[LAST_REWARD][:] = reply.action, step.reward

    def discounted_return(self, step: Step, gamma: float) -> np.ndarray:
        """The running discounted return of each environment, [E]."""
        if not self.discounted.size:
            self.discounted = np.zeros_like(step.reward)
        running, first = self.discounted, self.arrays["first"][self.row]
        np.multiply(running, np.where(first, 0.0, gamma), out=running)
        running += step.reward
        return running

    def is_bad(self) -> bool:
        """Whether the trajectory that ends here met numbers that are not finite."""
        met = self.environment.bad_rows - self.bad_rows_seen
        self.bad_rows_seen += met
        self.bad_in_a_row = self.bad_in_a_row + 1 if met else 0
        return met > 0


@dataclass(eq=False)
class Actor(Role):
    """Steps environments and fills the slots of `sink`, one trajectory after the other.

    `synchronous`: each trajectory begins only from weights that have learned from the one before
    (A2C's barrier). `gamma` is only used for the statistics of return normalisation. `parameters`:
    where the run says how environments are to be played from their next episode on."""

    niceness: ClassVar[int] = 5  # actors may each wait a little; they all wait for a learner

    environments: Environments
    policy: Policy
    sink: ExperienceSink
    synchronous: bool = False
    gamma: float = 0.99
    gate: Gate | None = None
    parameters: ParameterSource | None = None

    def open(self, context: NodeContext) -> None:
        self._context, environments = context, self.environments
        self._told = None if self.parameters is None else ParameterReader(self.parameters)
        self._turns: list[EnvironmentGroup] = []
        self._groups = self._make_groups(context)
        self.policy.open(context, [environments.width] * environments.num_groups)
        if self.gate is not None:
            self.gate.open(context)
        telemetry = context.telemetry
        self._inferring, self._stepping = telemetry.stage("infer"), telemetry.stage("step")
        self._handing_over, self._pulling = telemetry.stage("hand_over"), telemetry.stage("pull")
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
        told = {} if self._told is None else self._told.values
        return self._turns or EnvironmentGroup.make_all(*made, told)

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
        if group.slot is None:
            return False
        with self._pulling:
            is_fresh = self.policy.refresh(group.minimum_version)
            if self._told is not None:
                self._tell_environments(self._told)
        if not is_fresh:
            return False
        group.begin()
        self._stamp(group)
        self._ask(group)
        return True

    def _tell_environments(self, told: ParameterReader) -> None:
        """Once per trajectory: new values wait in every environment for its next episode."""
        if told.refresh():
            for group in self._groups:
                group.environment.set_parameters(told.values)
        self._context.telemetry.gauge("environment_version").set(told.version)

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
        if step.episode_info:
            self._context.telemetry.episode_info(step.episode_info)
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
        with self._handing_over:
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
