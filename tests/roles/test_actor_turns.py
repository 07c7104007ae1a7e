# SPDX-License-Identifier: Apache-2.0
"""An actor whose groups take turns on one thread writes what the environments showed and did."""

from types import SimpleNamespace

import numpy as np
import pytest
from wiring import context, opened

from veldt.environments import EnvironmentFactory, Environments
from veldt.ports import Policy
from veldt.roles.actor import Actor
from veldt.types import PolicyReply, slots_over, trajectory_layout

pytest.importorskip("ale_py")

WIDTH, STEPS, TRAJECTORIES = 2, 6, 5


class LatePolicy(Policy):
    """Chooses by what it sees and answers when asked for the third time."""

    def open(self, context, widths):
        self._replies, self._looks = [None] * len(widths), [0] * len(widths)

    def request(self, group, slot, row):
        seen = slot["observation"][row].reshape(WIDTH, -1).astype(np.int64).sum(1)
        action = (seen + row) % 6
        self._replies[group], self._looks[group] = PolicyReply(action, action, {}, 0), 0

    def reply(self, group):
        self._looks[group] += 1
        return self._replies[group] if self._looks[group] >= 3 else None


class Kept:
    """Fresh slots, and all that were committed, by group."""

    def __init__(self, layout, num_groups):
        self._layout, self.groups = layout, [[] for _ in range(num_groups)]

    def reserve(self):
        return slots_over(self._layout, np.zeros(self._layout.nbytes, np.uint8), 1)[0]

    def commit(self, slot):
        self.groups[int(slot["provenance"][0, 0])].append(slot)


@pytest.mark.parametrize("num_groups", [2, 3])
def test_every_row_is_what_its_environments_showed_and_did(num_groups):
    factory = EnvironmentFactory("ALE/Pong-v5", time_limit=9)
    kept = Kept(trajectory_layout(factory.spec(), STEPS, WIDTH, {}), num_groups)
    own = context("actor-0")
    environments = Environments(factory, WIDTH * num_groups, num_groups)
    actor = opened(Actor(environments, LatePolicy(), kept), own)
    worked = 0
    while min(map(len, kept.groups)) < TRAJECTORIES:
        worked += actor.step()
        assert worked < 1000
    actor.close()

    reference = factory.make(WIDTH * num_groups, own.derived_seed("environment-0"))
    reference.reset()
    for number in range(TRAJECTORIES):
        for row in range(STEPS):
            slots = [group[number] for group in kept.groups]
            shown = np.concatenate([slot["observation"][row] for slot in slots])
            np.testing.assert_array_equal(shown, reference.observations["observation"])
            first = np.concatenate([slot["first"][row] for slot in slots])
            np.testing.assert_array_equal(first, reference.first)
            step = reference.step(np.concatenate([slot["action"][row] for slot in slots]))
            for name in ("reward", "terminated", "truncated", "ignored"):
                written = np.concatenate([slot[name][row] for slot in slots])
                np.testing.assert_array_equal(written, getattr(step, name))
    reference.close()


def test_groups_that_wait_for_each_others_data_do_not_take_turns():
    factory = EnvironmentFactory("ALE/Pong-v5")
    sink = SimpleNamespace(reserve=lambda: None)
    actor = Actor(Environments(factory, 4, 2), LatePolicy(), sink, synchronous=True)
    opened(actor, context("actor-0"))
    assert not actor._alternating
    actor.close()
