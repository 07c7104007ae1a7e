# SPDX-License-Identifier: Apache-2.0
"""The one actor loop of every architecture.

For each group of environments: take the policy's reply if it is there, step, write the row, ask
again. With two groups, one steps while the other waits for its actions (double buffering).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from veldt.context import NodeContext
from veldt.environments import EnvironmentFactory, Step, VectorEnvironment
from veldt.ports import ExperienceSink, Policy
from veldt.roles.population import Gate
from veldt.roles.update_wait import UpdateWait
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


@dataclass
class _Group:
    """Environments stepped together and the trajectory they are writing."""

    index: int
    environment: VectorEnvironment
    slot: Slot | None = None
    begun: bool = False
    row: int = 0
    sequence: int = 0
    minimum_version: int = 0
    wait: UpdateWait | None = None
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """Last action and reward, for networks that want them."""
    discounted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


class Actor:
    """Steps environments and writes trajectories of `num_steps` + 1 rows.

    `synchronous`: each trajectory begins only from weights that have learned from the one before
    (A2C's barrier). `gamma` is only used for the statistics of return normalisation."""

    restartable = True
    niceness = 5  # many actors may each wait a little; they all wait for a learner or server

    def __init__(
        self,
        context: NodeContext,
        *,
        environment: EnvironmentFactory,
        num_envs: int,
        num_steps: int,
        sink: ExperienceSink,
        policy: Callable[..., Policy],
        policy_port: object,
        num_groups: int = 1,
        synchronous: bool = False,
        gamma: float = 0.99,
        gate: Callable[..., Gate] | None = None,
        gate_port: object = None,
    ) -> None:
        self._context, self._sink, self._gamma = context, sink, gamma
        self._num_steps, self._synchronous = num_steps, synchronous
        width = num_envs // num_groups
        self._groups = [
            _make_group(context, environment, width, index) for index in range(num_groups)
        ]
        self._policy = policy(context, policy_port, [width] * num_groups)
        self._gate = gate(gate_port, index=context.index) if gate else None
        telemetry = context.telemetry
        self._inferring, self._stepping = telemetry.stage("infer"), telemetry.stage("step")
        self._env_steps = telemetry.counter("env_steps")
        self._trajectories = telemetry.counter("trajectories")
        if synchronous:
            for group in self._groups:
                group.wait = UpdateWait(telemetry)

    def step(self) -> bool:
        worked = False
        for group in self._groups:
            worked |= self._advance(group)
        return worked

    def _advance(self, group: _Group) -> bool:
        if not group.begun and not self._begin(group):
            return False
        reply = self._policy.reply(group.index)
        if reply is None:
            return False
        self._write_reply(group, reply)
        self._step_environment(group, reply)
        return True

    def _begin(self, group: _Group) -> bool:
        """Row 0 of a new trajectory, if there is room for it and the weights are as asked."""
        if group.slot is None:
            if self._gate is not None and not self._gate.is_open():
                return False
            group.slot = self._sink.reserve()
        if group.slot is None or not self._policy.refresh(group.minimum_version):
            return False
        if group.wait is not None:
            group.wait.trajectory_begins()
        group.begun, group.row = True, 0
        if LAST_ACTION in group.slot.arrays and not group.past:
            self._prepare_past(group)
        self._write_observation(group)
        self._stamp(group)
        self._ask(group)
        return True

    def _ask(self, group: _Group) -> None:
        assert group.slot is not None
        with self._inferring:
            self._policy.request(group.index, group.slot, group.row)

    def _write_reply(self, group: _Group, reply: PolicyReply) -> None:
        assert group.slot is not None
        arrays, row = group.slot.arrays, group.row
        arrays["action"][row] = reply.action
        for name, value in reply.outputs.items():
            arrays[name][row] = value
        arrays["parameter_version"][row] = reply.version

    def _step_environment(self, group: _Group, reply: PolicyReply) -> None:
        assert group.slot is not None
        with self._stepping:
            step = group.environment.step(reply.env_action)
        self._write_step(group.slot.arrays, group.row, step)
        if group.past:
            group.past[LAST_ACTION][:], group.past[LAST_REWARD][:] = reply.action, step.reward
        if DISCOUNTED_RETURN in group.slot.arrays:
            self._write_discounted_return(group, step)
        group.row += 1
        self._write_observation(group)
        self._count(step)
        if group.row < self._num_steps:
            self._ask(group)
        else:
            self._finish(group)

    @staticmethod
    def _write_step(arrays: dict[str, np.ndarray], row: int, step: Step) -> None:
        arrays["reward"][row] = step.reward
        arrays["terminated"][row] = step.terminated
        arrays["truncated"][row] = step.truncated
        arrays["ignored"][row] = step.ignored
        if step.final_observations is not None:
            for name, value in step.final_observations.items():
                arrays[name][row] = value

    @staticmethod
    def _write_observation(group: _Group) -> None:
        assert group.slot is not None
        arrays, environment = group.slot.arrays, group.environment
        for name, value in environment.observations.items():
            arrays[name][group.row] = value
        for name, value in group.past.items():
            arrays[name][group.row] = value
        arrays["first"][group.row] = environment.first

    @staticmethod
    def _prepare_past(group: _Group) -> None:
        assert group.slot is not None
        for name in (LAST_ACTION, LAST_REWARD):
            group.past[name] = np.zeros_like(group.slot.arrays[name][0])

    def _write_discounted_return(self, group: _Group, step: Step) -> None:
        assert group.slot is not None
        if not group.discounted.size:
            group.discounted = np.zeros_like(step.reward)
        running, first = group.discounted, group.slot.arrays["first"][group.row]
        np.multiply(running, np.where(first, 0.0, self._gamma), out=running)
        running += step.reward
        group.slot.arrays[DISCOUNTED_RETURN][group.row] = running

    def _count(self, step: Step) -> None:
        self._env_steps.add(step.env_steps)
        if step.episode_returns.size:
            self._context.telemetry.episode(step.episode_returns, step.episode_lengths)

    def _stamp(self, group: _Group) -> None:
        """Whose trajectory this is; a policy elsewhere needs to know it before the first row."""
        assert group.slot is not None
        provenance = group.slot.arrays["provenance"][0]
        provenance[PROVENANCE_ACTOR] = self._context.index * len(self._groups) + group.index
        provenance[PROVENANCE_INCARNATION] = self._context.incarnation
        provenance[PROVENANCE_SEQUENCE] = group.sequence

    def _finish(self, group: _Group) -> None:
        assert group.slot is not None
        arrays = group.slot.arrays
        if self._synchronous:
            group.minimum_version = int(arrays["parameter_version"][0, 0]) + 1
        if group.wait is not None:
            group.wait.trajectory_finished()
        self._sink.commit(group.slot)
        self._trajectories.add()
        group.sequence += 1
        group.slot, group.begun = None, False

    def state(self) -> dict[str, np.ndarray]:
        """Environments cannot be saved: whoever continues begins new episodes."""
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...

    def close(self) -> None:
        for group in self._groups:
            group.environment.close()


def _make_group(
    context: NodeContext, factory: EnvironmentFactory, width: int, index: int
) -> _Group:
    environment = factory.make(width, context.derived_seed(f"environment-{index}"))
    environment.reset()
    return _Group(index, environment)
