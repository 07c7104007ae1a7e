# SPDX-License-Identifier: Apache-2.0
"""Environments that an actor steps together, and the trajectory they are writing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from veldt.context import NodeContext
from veldt.environments import EnvironmentFactory, Step, VectorEnvironment
from veldt.roles.update_wait import UpdateWait
from veldt.types import LAST_ACTION, LAST_REWARD, PolicyReply, Slot


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
        context: NodeContext, factory: EnvironmentFactory, width: int, num_groups: int
    ) -> list[EnvironmentGroup]:
        """Groups that are stepped whenever their actions are there."""
        seeds = [context.derived_seed(f"environment-{index}") for index in range(num_groups)]
        groups = [EnvironmentGroup(i, factory.make(width, seed)) for i, seed in enumerate(seeds)]
        for group in groups:
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
