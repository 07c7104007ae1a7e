# SPDX-License-Identifier: Apache-2.0
"""The actor loop of every architecture.

For each group of environments: take the policy's reply if it is there, step, write the row, request
the next action. With two groups, one steps while the other waits for its actions (double
buffering).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from veldt.context import NodeContext
from veldt.environments import Environments, Step, VectorEnvironment
from veldt.environments.copies import EnvironmentFailure
from veldt.ports import ExperienceSink, Policy
from veldt.role import Role
from veldt.roles.ga3c_tuner import Gate
from veldt.roles.pacing import Pacing
from veldt.types import (
    DISCOUNTED_RETURN,
    LAST_ACTION,
    LAST_REWARD,
    PolicyReply,
    Slot,
)

_MOST_BAD_TRAJECTORIES = 20  # in a row, of one group


@dataclass
class EnvironmentGroup:
    """Environments that are stepped together, and the slot that their rows are written into."""

    index: int
    environment: VectorEnvironment
    reply: PolicyReply | None = None
    """The actions of the current step; None before the first one."""
    slot: Slot | None = None
    begun: bool = False
    row: int = 0
    sequence: int = 0
    turn: int = 0
    """Which of the trajectories that the learner takes in turn is the next; see Pacing."""
    finished_at: float | None = None
    """When the last trajectory ended."""
    bad_rows_seen: int = 0
    bad_in_a_row: int = 0
    """Consecutive trajectories with numbers that are not finite."""
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """Last action and reward, for networks that take them as inputs."""
    discounted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        assert self.slot is not None
        return self.slot.arrays

    @property
    def num_steps(self) -> int:
        """Rows of a trajectory that have an action; one more only bootstraps."""
        return len(self.arrays["first"]) - 1

    def begin(self) -> None:
        """Row 0 of a new trajectory."""
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


@dataclass(eq=False)
class Actor(Role):
    """Steps environments and fills the slots of `sink`, one trajectory after the other.

    `pacing`: how far it may run ahead of the learner. `gamma` is only used for the statistics of
    return normalisation."""

    niceness: ClassVar[int] = 5  # a learner, which all actors wait for, takes precedence

    environments: Environments
    policy: Policy
    sink: ExperienceSink
    pacing: Pacing | None = None
    gamma: float = 0.99
    gate: Gate | None = None

    def open(self, context: NodeContext) -> None:
        self._context, environments = context, self.environments
        self._alternating: list[EnvironmentGroup] = []
        self._groups = self._make_groups(context)
        self.policy.open(context, [environments.width] * environments.num_groups)
        if self.gate is not None:
            self.gate.open(context)
        telemetry = context.telemetry
        self._inferring, self._stepping = telemetry.stage("infer"), telemetry.stage("step")
        self._handing_over, self._pulling = telemetry.stage("hand_over"), telemetry.stage("pull")
        ahead = self.pacing is not None and self.pacing.eta > 0
        self._env_steps = telemetry.counter("collected_env_steps" if ahead else "env_steps")
        self._trajectories = telemetry.counter("trajectories")
        self._aborted_episodes = telemetry.counter("aborted_episodes")
        self._bad_trajectories = telemetry.counter("dropped.bad_trajectory")
        self._waiting = telemetry.counter("wait_for_update_seconds") if self.pacing else None

    def _make_groups(self, context: NodeContext) -> list[EnvironmentGroup]:
        factory, width = self.environments.factory, self.environments.width
        seeds = [
            context.derived_seed(f"environment-{index}")
            for index in range(self.environments.num_groups)
        ]
        # A group that alternates waits for the one before: not possible where groups wait for each
        # other's data, nor with a gate that lets the others finish.
        if len(seeds) > 1 and self.pacing is None and self.gate is None:
            alternating = factory.make_groups(len(seeds), width, seeds[0])
            if alternating is not None:
                alternating[0].reset()
                self._alternating = [EnvironmentGroup(*each) for each in enumerate(alternating)]
                return self._alternating
        groups = [EnvironmentGroup(i, factory.make(width, seed)) for i, seed in enumerate(seeds)]
        for group in groups:
            group.environment.reset()
        return groups

    def step(self) -> bool:
        if self._alternating:
            return self._alternate()
        worked = False
        for group in self._groups:
            if self._send(group):
                self._receive(group)
                worked = True
        return worked

    def _alternate(self) -> bool:
        """Send one group's actions and receive the step of the next group, sent before it."""
        if not self._send(self._alternating[0]):
            return False
        self._alternating = [*self._alternating[1:], self._alternating[0]]
        following = self._alternating[0]
        if following.reply is None:
            following.environment.reset()
        else:
            self._receive(following)
        return True

    def _send(self, group: EnvironmentGroup) -> bool:
        """Send the policy's reply to a group's environments, if there is one."""
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
        """Begin a trajectory, if there is a slot and the weights are new enough."""
        version: int | None = None
        if self.pacing is not None:
            turn = self.pacing.next_turn(group.turn)
            if turn is None:
                return False
            group.turn, version = turn, self.pacing.version(turn)
        if group.slot is None:
            if self.gate is not None and not self.gate.is_open():
                return False
            group.slot = self.sink.reserve()
        if group.slot is None:
            return False
        with self._pulling:
            self.policy.refresh(version)
        if self._waiting is not None and group.finished_at is not None:
            self._waiting.add(time.perf_counter() - group.finished_at)
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
        if step.episode_info:
            self._context.telemetry.episode_info(step.episode_info)
        if step.aborted_episodes:
            self._aborted_episodes.add(step.aborted_episodes)

    def _stamp(self, group: EnvironmentGroup) -> None:
        """Write the provenance, which a remote policy reads before the first row."""
        assert group.slot is not None
        number = self._context.index * len(self._groups) + group.index
        group.slot.stamp(number, self._context.incarnation, group.sequence, group.turn)

    def _finish(self, group: EnvironmentGroup) -> None:
        assert group.slot is not None
        group.sequence += 1  # also if it is dropped: the next trajectory does not continue it
        group.begun = False
        group.finished_at = time.perf_counter()
        if self._is_bad(group):
            return  # its slot is left to the next trajectory
        group.turn += 1
        with self._handing_over:
            self.sink.commit(group.slot)
        self._trajectories.add()
        group.slot = None

    def _is_bad(self, group: EnvironmentGroup) -> bool:
        """Whether the trajectory that ends here contains numbers that are not finite."""
        met = group.environment.bad_rows - group.bad_rows_seen
        group.bad_rows_seen += met
        group.bad_in_a_row = group.bad_in_a_row + 1 if met else 0
        self._bad_trajectories.add(met > 0)
        if group.bad_in_a_row >= _MOST_BAD_TRAJECTORIES:
            raise EnvironmentFailure(
                f"the environment '{group.environment.spec.id}' gave rewards or observations that"
                f" are not finite in {group.bad_in_a_row} trajectories in a row"
            )
        return met > 0

    def close(self) -> None:
        for group in self._groups:
            group.environment.close()
