# SPDX-License-Identifier: Apache-2.0
"""What an actor writes into its trajectories."""

from types import SimpleNamespace

import numpy as np
import pytest
from wiring import context, opened

from veldt.environments import EnvironmentFactory, Environments
from veldt.ports import Policy
from veldt.roles.actor import Actor
from veldt.roles.pacing import Pacing
from veldt.types import (
    DISCOUNTED_RETURN,
    LAST_ACTION,
    LAST_REWARD,
    PROVENANCE_ACTOR,
    Field,
    PolicyReply,
    slots_over,
    trajectory_layout,
)

WIDTH, STEPS, TRAJECTORIES, GAMMA = 2, 8, 20, 0.9
OUTPUTS = {
    LAST_ACTION: Field((), "int64"),
    LAST_REWARD: Field((), "float32"),
    DISCOUNTED_RETURN: Field((), "float32"),
}


class AlternatingPolicy(Policy):
    """Falls over within some ten steps, at another time in each environment."""

    def open(self, context, widths):
        self._rows = 0

    def request(self, group, slot, row):
        self._rows += 1

    def reply(self, group):
        action = (np.arange(WIDTH) + self._rows // 3) % 2
        return PolicyReply(action, action, {}, 0)


class LatePolicy(Policy):
    """Chooses by the observation, and answers when it is asked for the third time."""

    def open(self, context, widths):
        self._replies, self._asked = [None] * len(widths), [0] * len(widths)

    def request(self, group, slot, row):
        seen = slot["observation"][row]
        action = (seen.reshape(len(seen), -1).astype(np.int64).sum(1) + row) % 2
        self._replies[group], self._asked[group] = PolicyReply(action, action, {}, 0), 0

    def reply(self, group):
        self._asked[group] += 1
        return self._replies[group] if self._asked[group] >= 3 else None


class Kept:
    """Fresh slots, and all that were committed, by the actor they name."""

    def __init__(self, layout):
        self._layout, self.by_actor = layout, {}

    def reserve(self):
        return slots_over(self._layout, np.zeros(self._layout.nbytes, np.uint8), 1)[0]

    def commit(self, slot):
        actor = int(slot["provenance"][0, PROVENANCE_ACTOR])
        self.by_actor.setdefault(actor, []).append(slot)


def acted(index=0, num_groups=1):
    """Trajectories of one actor on CartPole, by group."""
    factory = EnvironmentFactory("CartPole-v1")
    kept = Kept(trajectory_layout(factory.spec(), STEPS, WIDTH, OUTPUTS))
    environments = Environments(factory, WIDTH * num_groups, num_groups)
    actor = Actor(environments, AlternatingPolicy(), kept, gamma=GAMMA)
    opened(actor, context(f"actor-{index}", index))
    while sum(map(len, kept.by_actor.values())) < TRAJECTORIES * num_groups:
        actor.step()
    actor.close()
    return kept.by_actor


def joined(slots, name):
    """The rows that were acted on, one after the other."""
    return np.concatenate([slot[name][:-1] for slot in slots])


def test_discounted_returns_begin_anew_with_each_episode():
    [slots] = acted().values()
    first, reward = joined(slots, "first"), joined(slots, "reward")
    assert first[1:].sum() >= 4
    running, expected = np.zeros(WIDTH), []
    for begins, gained in zip(first, reward, strict=True):
        running = np.where(begins, 0.0, GAMMA * running) + gained
        expected.append(running)
    np.testing.assert_allclose(joined(slots, DISCOUNTED_RETURN), expected, rtol=1e-6)


def test_each_row_has_the_last_action_and_reward():
    [slots] = acted().values()
    for last, name in ((LAST_ACTION, "action"), (LAST_REWARD, "reward")):
        rows = joined(slots, name)
        assert len(np.unique(rows)) > 1
        np.testing.assert_array_equal(joined(slots, last)[1:], rows[:-1])


def test_every_group_of_every_actor_has_a_number_of_its_own():
    found = [acted(index, num_groups=2) for index in range(2)]
    assert [sorted(by_actor) for by_actor in found] == [[0, 1], [2, 3]]
    for by_actor in found:
        for slots in by_actor.values():
            sequences = [int(slot["provenance"][0, 2]) for slot in slots]
            assert sequences == list(range(len(slots)))


@pytest.mark.parametrize("num_groups", [2, 3])
def test_alternating_groups_write_what_their_environments_showed_and_did(num_groups):
    pytest.importorskip("ale_py")
    factory = EnvironmentFactory("ALE/Pong-v5", time_limit=9)
    kept = Kept(trajectory_layout(factory.spec(), 6, WIDTH, {}))
    environments = Environments(factory, WIDTH * num_groups, num_groups)
    own = context("actor-0")
    actor = opened(Actor(environments, LatePolicy(), kept), own)
    assert actor._alternating
    while len(kept.by_actor) < num_groups or min(map(len, kept.by_actor.values())) < 5:
        actor.step()
    actor.close()

    reference = factory.make(WIDTH * num_groups, own.derived_seed("environment-0"))
    reference.reset()
    for number in range(5):
        slots = [kept.by_actor[group][number] for group in range(num_groups)]
        for row in range(6):

            def written(name, slots=slots, row=row):
                return np.concatenate([slot[name][row] for slot in slots])

            shown = reference.observations["observation"]
            np.testing.assert_array_equal(written("observation"), shown)
            np.testing.assert_array_equal(written("first"), reference.first)
            step = reference.step(written("action"))
            for name in ("reward", "terminated", "truncated", "ignored"):
                np.testing.assert_array_equal(written(name), getattr(step, name))
    reference.close()


def test_groups_that_wait_for_each_others_data_do_not_alternate():
    pytest.importorskip("ale_py")
    sink = SimpleNamespace(reserve=lambda: None)
    environments = Environments(EnvironmentFactory("ALE/Pong-v5"), 4, 2)
    actor = Actor(environments, LatePolicy(), sink, pacing=Pacing(SimpleNamespace()))
    opened(actor, context("actor-0"))
    assert not actor._alternating
    actor.close()
