# SPDX-License-Identifier: Apache-2.0
"""Pacing in any interleaving of actors and learner, also where they die: no trajectory is lost or
learned from twice, each is `eta` updates old, and nobody waits for ever."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from wiring import context, counted

from veldt.backends.shared_memory.fabric import build_fabric
from veldt.role import Role, bound
from veldt.roles.pacing import Pacing
from veldt.topology import Topology
from veldt.types import PROVENANCE_ACTOR, PROVENANCE_TURN, Field, Layout, Parameters

LAYOUT = Layout.of(
    row=Field((3, 2), "float32", join_axis=1),
    ignored=Field((3, 2), "bool", join_axis=1),
    first=Field((3, 2), "bool", join_axis=1),
    provenance=Field((1, 5), "int64"),
)


class Paced:
    """Actors and a learner over real channels, stepped by hand."""

    def __init__(self, groups: int, share: int, eta: int, first_version: int = 0) -> None:
        topology = Topology(None)  # type: ignore[arg-type]
        board = topology.board("weights", np.full(1, first_version, np.float32), eta + 1)
        topology.boards = [replace(board, version=first_version)]
        pacing = Pacing(board.source(), eta, share)
        queue = topology.queue("trajectories", LAYOUT, pacing.slots(groups))
        problem = SimpleNamespace(
            num_actors=groups, spec=SimpleNamespace(rows_per_env_step=1), schedule=None
        )
        batches = pacing.batches(queue, problem)  # type: ignore[arg-type]
        bystander = topology.add("bystander", Role())
        self.fabric = build_fabric(topology, between_processes=False, verify=True)
        self.queue, self.groups, self.eta, self.share = queue, groups, eta, share
        self.open = lambda part, holder: bound(
            part, lambda end: self.fabric.open(bystander, end, holder)
        )
        self.board, self.batches, self.pacing = self.open(board.sink, 1), batches, pacing
        self.actors = [self.actor(group) for group in range(groups)]
        self.version, self.first_version = first_version, first_version
        self.dropped = self.waited_for_slots = 0.0
        self.restart_learner()

    def actor(self, group: int) -> SimpleNamespace:
        holder = 10 + group
        return SimpleNamespace(
            pacing=self.open(self.pacing, holder),
            sink=self.open(self.queue.sink, holder),
            turn=0,
            slot=None,
        )

    def act(self, group: int) -> bool:
        """Begin a trajectory, or complete the one that is begun."""
        actor = self.actors[group]
        if actor.slot is not None:
            actor.sink.commit(actor.slot)
            actor.slot = None
            actor.turn += 1
            return True
        turn = actor.pacing.next_turn(actor.turn)
        if turn is None:
            return False
        actor.turn, actor.slot = turn, actor.sink.reserve()
        if actor.slot is None:  # only where those that died had collected some twice
            self.waited_for_slots += 1
            return False
        vector = np.zeros(1, np.float32)
        version = actor.pacing.weights.pull(vector, -1, actor.pacing.version(turn))
        assert version == vector[0] == max(self.first_version, turn // self.share - self.eta)
        for array in actor.slot.arrays.values():
            array[:] = 0
        actor.slot["row"][:] = 1000 * group + turn
        actor.slot["provenance"][0, [PROVENANCE_ACTOR, PROVENANCE_TURN]] = group, turn
        return True

    def kill_actor(self, group: int) -> None:
        self.fabric.queues["trajectories"].reclaim(10 + group)
        self.actors[group] = self.actor(group)

    def restart_learner(self) -> None:
        self.fabric.queues["trajectories"].reclaim(1)
        self.told, self.held = context(), None
        self.source = self.open(self.batches, 1)
        self.source.open(self.told)

    def learn(self) -> bool:
        """Take a batch, or publish what was learned from it and release it."""
        if self.held is None:
            self.held = self.source.take_batch()
            return self.held is not None
        turns = self.version * self.share + np.arange(self.share)
        expected = [1000 * group + turn for group in range(self.groups) for turn in turns]
        assert self.held["row"][0, ::2].tolist() == expected
        self.version += 1
        self.board.publish(Parameters(np.full(1, self.version, np.float32), self.version))
        self.source.release(self.held)
        self.dropped = counted(self.told, "dropped.repeated_trajectory")
        self.held = None
        return True


@pytest.mark.parametrize("eta", [0, 1, 2, 5])
@pytest.mark.parametrize(("groups", "share"), [(1, 1), (1, 2), (3, 1), (2, 3), (7, 1)])
@pytest.mark.parametrize("deaths", [0.0, 0.03])
def test_in_every_interleaving_all_is_learned_in_order(groups, share, eta, deaths):
    for seed in range(8):
        random = np.random.default_rng([seed, groups, share, eta])
        paced, idle = Paced(groups, share, eta, first_version=seed), 0
        speeds = random.random(groups + 1) + 0.02  # some are much slower than others
        while paced.version < seed + 12:
            who = int(random.choice(groups + 1, p=speeds / speeds.sum()))
            if random.random() < deaths:
                paced.kill_actor(who) if who < groups else paced.restart_learner()
            moved = paced.act(who) if who < groups else paced.learn()
            idle = 0 if moved else idle + 1
            assert idle < 2_000, "everyone waits"
            ahead = max(actor.turn for actor in paced.actors) // share - paced.version
            assert ahead <= eta + 1
        if not deaths:
            assert paced.dropped == paced.waited_for_slots == 0
