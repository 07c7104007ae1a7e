# SPDX-License-Identifier: Apache-2.0
"""The one actor loop of every architecture.

For each group of environments: take the policy's reply if it is there, step, write the row, ask
again. With two groups, one steps while the other waits for its actions (double buffering): where
the environments have a thread of their own, they take turns on it and it never rests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from veldt.context import NodeContext
from veldt.environments import EnvironmentFactory, Step
from veldt.environments.resilience import EnvironmentFailure
from veldt.ports import ExperienceSink, Policy
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
        made = (context, environment, width, num_groups)
        # Who takes turns waits for the one before: not with groups that must wait for each other's
        # data, nor with a gate that lets the others finish.
        may_take_turns = not synchronous and gate is None
        self._turns = EnvironmentGroup.make_turns(*made) if may_take_turns else []
        self._groups = self._turns or EnvironmentGroup.make_all(*made)
        self._policy = policy(context, policy_port, [width] * num_groups)
        self._gate = gate(gate_port, index=context.index) if gate else None
        telemetry = context.telemetry
        self._inferring, self._stepping = telemetry.stage("infer"), telemetry.stage("step")
        self._env_steps = telemetry.counter("env_steps")
        self._trajectories = telemetry.counter("trajectories")
        self._acting_version = telemetry.gauge("acting_version")
        self._aborted_episodes = telemetry.counter("aborted_episodes")
        self._bad_trajectories = telemetry.counter("dropped.bad_trajectory")
        if synchronous:
            for group in self._groups:
                group.wait = UpdateWait(telemetry)

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
        reply = self._policy.reply(group.index)
        if reply is None:
            return False
        group.write_reply(reply)
        group.environment.send(reply.env_action)
        group.reply = reply
        return True

    def _begin(self, group: EnvironmentGroup) -> bool:
        """Row 0 of a new trajectory, if there is room for it and the weights are as asked."""
        if group.slot is None:
            if self._gate is not None and not self._gate.is_open():
                return False
            group.slot = self._sink.reserve()
        if group.slot is None or not self._policy.refresh(group.minimum_version):
            return False
        group.begin()
        self._stamp(group)
        self._ask(group)
        return True

    def _ask(self, group: EnvironmentGroup) -> None:
        assert group.slot is not None
        with self._inferring:
            self._policy.request(group.index, group.slot, group.row)

    def _receive(self, group: EnvironmentGroup) -> None:
        with self._stepping:
            step = group.environment.receive()
        group.write_step(step)
        if DISCOUNTED_RETURN in group.arrays:
            returns = group.discounted_return(step, self._gamma)
            group.arrays[DISCOUNTED_RETURN][group.row] = returns
        group.row += 1
        group.write_observation()
        self._count(group, step)
        if group.row < self._num_steps:
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
        if self._synchronous:
            group.minimum_version = version + 1
        self._sink.commit(group.slot)
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

    def state(self) -> dict[str, np.ndarray]:
        """Environments cannot be saved: whoever continues begins new episodes."""
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...

    def close(self) -> None:
        for group in self._groups:
            group.environment.close()
