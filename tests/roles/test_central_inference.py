# SPDX-License-Identifier: Apache-2.0
"""Central inference without a backend: real actors, a real stream, a reader at the queue.

The counting environments name every row, so that a lost, doubled or misplaced one shows."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from counting_environments import CountingVectorEnvironment
from gymnasium.vector import AutoresetMode
from wiring import counted, live, opened

from veldt.context import NodeContext
from veldt.environments import EnvironmentFactory, Environments
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.roles.actor import Actor
from veldt.roles.inference import BatchedPolicy, BatchRule
from veldt.roles.policies import ScratchSink, StreamPolicy, stream_layouts
from veldt.roles.stream_inference import StreamInference
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Topology
from veldt.types import (
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    Parameters,
    trajectory_layout,
)

STEPS, WIDTH = 5, 3


class House:
    """`num_actors` actors of `groups` groups, a server, and a queue that the test reads."""

    def __init__(
        self,
        num_actors: int = 1,
        groups: int = 1,
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        num_slots: int = 40,
        enough: int = 1,
        patience_seconds: float = 0.0,
        **network: Any,
    ) -> None:
        self.environment = EnvironmentFactory(
            partial(CountingVectorEnvironment, autoreset_mode=mode)
        )
        spec = self.environment.spec()
        config = NetworkOptions(hidden_sizes=(8,), **network)
        self.network = NetworkFactory(config, spec, "policy_value", 3)
        built = self.network.make()
        outputs = {**built.output_fields(), **built.input_fields()}
        self.layout = trajectory_layout(spec, STEPS, WIDTH, outputs, built.state_fields())
        self.request, answer = stream_layouts(self.layout, spec.action)
        self.groups, self.now = groups, 0.0
        topology = Topology(self.network)
        self.stream = topology.stream("stream", self.request, answer, num_actors, groups)
        queue = topology.queue("trajectories", self.layout, num_slots)
        self.vector = FlatParameters(built).numpy()
        board = topology.board("weights", self.vector)
        self.open = live(topology)
        self.told = self._context("inference-0", 0, 0)
        server = StreamInference(
            self.stream.server,
            BatchedPolicy(self.network, board.source()),
            queue.sink,
            BatchRule(enough, num_actors * groups, patience_seconds),
            answer,
            groups,
        )
        self.server = opened(self.open(server), self.told)
        self.source, self.weights = self.open(queue.source()), self.open(board.sink)
        self.actors = [self.actor(index) for index in range(num_actors)]

    def _context(self, name: str, index: int, incarnation: int) -> NodeContext:
        telemetry = NodeTelemetry()
        return NodeContext(name, index, 1, telemetry, incarnation, clock=lambda: self.now)

    def actor(self, index: int, incarnation: int = 0) -> Actor:
        actor = Actor(
            Environments(self.environment, WIDTH * self.groups, self.groups),
            StreamPolicy(self.request, self.stream.client(index)),
            ScratchSink(self.layout, self.groups),
        )
        return opened(self.open(actor), self._context(f"actor-{index}", index, incarnation))

    def publish(self, version: int) -> None:
        self.weights.publish(Parameters(self.vector, version))

    def run(self, rounds: int) -> list[dict[str, np.ndarray]]:
        """Everybody in turn; the trajectories that came out."""
        found = []
        for _ in range(rounds):
            for actor in self.actors:
                actor.step()
            self.server.step()
            found += self.delivered()
        return found

    def delivered(self) -> list[dict[str, np.ndarray]]:
        found = []
        while (batch := self.source.take_batch()) is not None:
            found.append({name: array.copy() for name, array in batch.arrays.items()})
            self.source.release(batch)
        return found


def check_rows(trajectory: dict[str, np.ndarray], same_step: bool) -> int:
    """Every row follows from the one before it as the counting environment says; rows checked."""
    observation, checked = trajectory["observation"], 0
    for row in range(STEPS):
        for env in range(WIDTH):
            (episode, count, identity), after = observation[row, env], observation[row + 1, env]
            over = trajectory["terminated"][row, env] or trajectory["truncated"][row, env]
            assert after[2] == identity
            if trajectory["ignored"][row, env]:
                assert not same_step
                assert (after[:2] == [episode + 1, 0]).all()
                continue
            assert trajectory["reward"][row, env] == count + 1
            assert trajectory["first"][row, env] == (count == 0)
            if over and same_step:
                final = trajectory["final_observation"][row, env]
                assert (final == [episode, count + 1, identity]).all()
                assert (after[:2] == [episode + 1, 0]).all()
            else:
                assert (after[:2] == [episode, count + 1]).all()
            if over:
                assert trajectory["terminated"][row, env] == (episode % 2 == 0)
            checked += 1
    return checked


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("num_actors", "groups"), [(1, 1), (1, 2), (2, 2)])
def test_trajectories_are_assembled_row_by_row_and_stitch(num_actors, groups, mode):
    house = House(num_actors, groups, mode)
    trajectories = house.run(60)
    assert all(counted(actor._context, "wire.bytes_down") > 0 for actor in house.actors)
    by_group: dict[int, list[dict[str, np.ndarray]]] = {}
    checked = 0
    for trajectory in trajectories:
        checked += check_rows(trajectory, mode == AutoresetMode.SAME_STEP)
        by_group.setdefault(int(trajectory["provenance"][0, PROVENANCE_ACTOR]), []).append(
            trajectory
        )
    assert checked > 100
    assert sorted(by_group) == list(range(num_actors * groups))
    for chain in by_group.values():
        assert len(chain) > 3
        for before, after in pairwise(chain):
            assert (before["observation"][-1] == after["observation"][0]).all()
            assert (before["first"][-1] == after["first"][0]).all()
            step = after["provenance"][0] - before["provenance"][0]
            assert step[PROVENANCE_SEQUENCE] == 1
            assert step[PROVENANCE_INCARNATION] == 0


def test_the_policy_that_acted_is_recorded_with_each_row_even_when_it_changes_in_between():
    house = House()
    found = []
    for version in range(1, 40):
        house.publish(version)
        found += house.run(1)
    versions = np.concatenate([trajectory["parameter_version"][:-1, 0] for trajectory in found])
    assert (np.diff(versions) >= 1).all()  # each row with the newest weights, none with the last's
    network = house.network.make().eval()
    FlatParameters(network).load(house.vector)
    for trajectory in found:
        tensor = {"observation": torch.from_numpy(trajectory["observation"][:-1].reshape(-1, 3))}
        first = torch.from_numpy(trajectory["first"][:-1].reshape(-1))
        logits = network.step(tensor, (), first)[0].logits.detach().numpy()
        kept = trajectory["behaviour_logits"][:-1].reshape(logits.shape)
        np.testing.assert_allclose(kept, logits, rtol=1e-5, atol=1e-6)


def test_recurrent_state_is_kept_per_environment_and_stored_at_row_0():
    house = House(2, 2, recurrent="lstm", recurrent_size=6, last_action_and_reward=True)
    trajectories = house.run(40)
    network = house.network.make().eval()
    FlatParameters(network).load(house.vector)
    assert len(trajectories) > 8
    for trajectory in trajectories:
        tensors = {name: torch.from_numpy(array) for name, array in trajectory.items()}
        state = (tensors["state.hidden"], tensors["state.cell"])
        with torch.no_grad():
            outputs, _ = network.unroll(tensors, state, tensors["first"])
        kept = tensors["behaviour_logits"][:-1]
        torch.testing.assert_close(outputs.logits[:-1], kept, rtol=1e-4, atol=1e-5)
        action, last = trajectory["action"], trajectory["last_action"]
        assert (last[1:] == action[:-1]).all()
        assert (trajectory["last_reward"][1:] == trajectory["reward"][:-1]).all()
    later = [entry for entry in trajectories if entry["provenance"][0, PROVENANCE_SEQUENCE] > 1]
    assert later
    assert all(np.abs(entry["state.hidden"]).max() > 0 for entry in later)


def test_a_restarted_actor_begins_anew_and_no_row_comes_twice():
    house = House(2, recurrent="lstm", recurrent_size=6)
    before = house.run(8)  # not a whole number of trajectories
    house.actors[0] = house.actor(0, incarnation=1)
    after = house.run(30)
    assert counted(house.told, "dropped.broken_connection") == 1
    assert counted(house.told, "wire.connections") == 3
    for trajectory in before + after:
        check_rows(trajectory, same_step=False)
    renewed = [entry for entry in after if entry["provenance"][0, PROVENANCE_ACTOR] == 0]
    assert (renewed[0]["state.hidden"] == 0).all()
    assert renewed[0]["first"][0].all()
    assert all(entry["provenance"][0, PROVENANCE_INCARNATION] == 1 for entry in renewed)
    keys = [
        (*entry["provenance"][0, :2], env, *entry["observation"][row, env])
        for entry in before + after
        for row in range(STEPS)
        for env in range(WIDTH)
    ]
    assert len(keys) == len(set(keys))
    others = [entry for entry in after if entry["provenance"][0, PROVENANCE_ACTOR] == 1]
    chain = [int(entry["provenance"][0, PROVENANCE_SEQUENCE]) for entry in others]
    assert (np.diff(chain) == 1).all()  # the other actor noticed nothing


def test_a_broken_connection_drops_the_unfinished_trajectory_and_the_chain_has_a_gap():
    house = House()
    before = house.run(8)
    port = house.open(house.stream.client(0))
    port.connect(0)  # the same incarnation, a new stream, in the middle of an episode
    policy = house.actors[0].policy
    policy.stream, policy._replies[0] = port, None
    slot, row = policy._last[0]
    policy.request(0, slot, row)
    after = house.run(20)
    for trajectory in before + after:
        check_rows(trajectory, same_step=False)
    sequences = [int(entry["provenance"][0, PROVENANCE_SEQUENCE]) for entry in before + after]
    assert sequences == sorted(set(sequences))
    gap = sequences[len(before)] - sequences[len(before) - 1]
    assert gap == 2  # so that a replay does not join what does not belong together


def test_without_room_rows_wait_and_nothing_is_lost():
    house = House(num_slots=2)
    found = []
    for _ in range(60):
        house.actors[0].step()
        house.server.step()
    assert counted(house.told, "inference_requests") == 2 * STEPS
    found += house.delivered()
    assert len(found) == 2
    found += house.run(30)
    for trajectory in found:
        check_rows(trajectory, same_step=False)
    chain = [int(entry["provenance"][0, PROVENANCE_SEQUENCE]) for entry in found]
    assert (np.diff(chain) == 1).all()


def test_the_server_waits_for_half_of_all_groups_and_not_for_the_dead():
    house = House(num_actors=4, enough=2, patience_seconds=1.0)
    house.actors[0].step()
    assert not house.server.step() or counted(house.told, "inference_batches") == 0
    house.server.step()
    assert counted(house.told, "inference_batches") == 0
    house.actors[1].step()
    house.server.step()
    assert counted(house.told, "inference_batches") == 1
    assert counted(house.told, "inference_requests") == 2
    house.actors = house.actors[:1]  # three of four are dead
    for expected in (2, 3):
        house.actors[0].step()
        house.server.step()
        assert counted(house.told, "inference_batches") == expected - 1
        house.now += 1.0
        house.server.step()
        assert counted(house.told, "inference_batches") == expected
