# SPDX-License-Identifier: Apache-2.0
"""Simulators that come and go: real streams, real clients, a reader at the queue.

The clients count, so that a row that was lost, doubled, or joined to another client's shows."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import grpc
import numpy as np
import pytest
from gymnasium import spaces
from veldt_client import PolicyClient, Refused
from wiring import counted, live, opened

from veldt.context import NodeContext
from veldt.environments.spaces import external_interface, external_spec
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.roles.inference import BatchedPolicy, BatchRule
from veldt.roles.policies import stream_layouts
from veldt.roles.stream_inference import CONNECTED, ExternalInference
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Topology
from veldt.types import trajectory_layout
from veldt.wire import policy_pb2 as pb
from veldt.wire.external import METHOD, SERVICE, ExternalFormat, ExternalServicer
from veldt.wire.security import Security
from veldt.wire.transport import RpcServer

STEPS, WIDTH, PLACES = 5, 2, 6
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,))
ACTION = spaces.Discrete(3, start=2)
EVERYBODY = Security("", admits_all=True)


class CountingClient:
    """Sees [client, episode, count] and is rewarded with a number that names the step."""

    def __init__(self, client: int, width: int | None = WIDTH) -> None:
        self.client, self.width = client, width
        self.episodes, self.counts = [0] * (width or 1), [0] * (width or 1)

    def see(self) -> list[list[float]]:
        pairs = zip(self.episodes, self.counts, strict=True)
        return [[self.client * 10 + row, e, c] for row, (e, c) in enumerate(pairs)]

    def step(self) -> tuple[list, ...]:
        """What policy.act takes."""
        rewards = [reward_of(each) for each in self.see()]
        self.counts = [count + 1 for count in self.counts]
        last, ends = self.see(), [self.over(row) for row in range(len(self.counts))]
        for row, over in enumerate(ends):
            if over:
                self.episodes[row], self.counts[row] = self.episodes[row] + 1, 0
        terminated = [over and each[1] % 2 == 0 for over, each in zip(ends, last, strict=True)]
        truncated = [over and each[1] % 2 == 1 for over, each in zip(ends, last, strict=True)]
        return self.see(), rewards, terminated, truncated, last

    def over(self, row: int) -> bool:
        return self.counts[row] >= 3 + (self.episodes[row] + row) % 4

    def play(self, address: str, acts: int) -> None:
        """Ask so often, then drop the connection in the middle of everything."""
        policy = PolicyClient(address, self.width, OBSERVATION, ACTION)
        actions = policy.act(self.see())
        for _ in range(acts - 1):
            assert all(action in (2, 3, 4) for action in actions)
            actions = policy.act(*self.step())
        policy.close()


def reward_of(observation) -> float:
    client, episode, count = observation
    return client * 10_000 + episode * 100 + count + 1


class House:
    """The server, a queue that the test reads, and as many clients as it likes."""

    def __init__(self, num_slots: int = 60, **network) -> None:
        interface = external_interface(OBSERVATION, ACTION)
        spec = external_spec("external:here", interface, False)
        config = NetworkOptions(hidden_sizes=(8,), **network)
        factory = NetworkFactory(config, spec, "policy_value", 3)
        built = factory.make()
        outputs = {**built.output_fields(), **built.input_fields()}
        layout = trajectory_layout(spec, STEPS, WIDTH, outputs, built.state_fields())
        _, answer = stream_layouts(layout, spec.action)
        topology = Topology(factory)
        queue = topology.queue("trajectories", layout, num_slots)
        board = topology.board("weights", FlatParameters(built).numpy())
        bind = live(topology)
        format = ExternalFormat(interface, learns=True, takes_masks=False)
        stream = RpcServer(ExternalServicer(format, PLACES, WIDTH), "127.0.0.1:0", EVERYBODY)
        self.address = f"127.0.0.1:{stream.port}"
        self.told = NodeContext("inference-0", 0, 1, NodeTelemetry())
        policy = BatchedPolicy(factory, board.source())
        rule = BatchRule(PLACES, PLACES, 0.02)
        role = ExternalInference(stream, policy, queue.sink, rule, answer)
        self.role, self.source = opened(bind(role), self.told), bind(queue.source())
        self.trajectories: list[dict[str, np.ndarray]] = []

    def attend(self, *clients: Callable[[], object]) -> None:
        """Serve until all clients are done and everybody has left."""
        failures: list[BaseException] = []

        def guarded(client: Callable[[], object]) -> None:
            try:
                client()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(each,)) for each in clients]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30.0
        while any(t.is_alive() for t in threads) or counted(self.told, CONNECTED):
            assert time.monotonic() < deadline
            if not self.role.step():
                time.sleep(0.0005)
            self._read()
        if failures:
            raise failures[0]

    def _read(self) -> None:
        while (batch := self.source.take_batch()) is not None:
            self.trajectories.append({name: each.copy() for name, each in batch.arrays.items()})
            self.source.release(batch)

    def steps(self) -> Counter[tuple[float, ...]]:
        """Every step that can be learned from, after a check that all of its row is its own."""
        found: Counter[tuple[float, ...]] = Counter()
        for trajectory in self.trajectories:
            for row in range(STEPS):
                for env in range(WIDTH):
                    if not trajectory["ignored"][row, env]:
                        found[_checked(trajectory, row, env)] += 1
        return found


def _checked(trajectory: dict[str, np.ndarray], row: int, env: int) -> tuple[float, ...]:
    seen, after = trajectory["observation"][row, env], trajectory["observation"][row + 1, env]
    client, episode, count = seen
    assert trajectory["reward"][row, env] == reward_of(seen)
    assert trajectory["first"][row, env] or count > 0
    follower = [client, episode, count + 1]
    if trajectory["truncated"][row, env]:
        assert (trajectory["final_observation"][row, env] == follower).all()
    elif not trajectory["terminated"][row, env]:
        assert (after == follower).all()
        assert not trajectory["first"][row + 1, env]
    if (trajectory["terminated"] | trajectory["truncated"])[row, env]:
        assert trajectory["first"][row + 1, env]
    return tuple(map(float, seen))


@pytest.fixture
def house():
    made = House()
    yield made
    made.role.close()


def test_every_step_arrives_once_whoever_dies_and_comes_back(house):
    def playing(acts):
        return [lambda c=c, n=n: CountingClient(c).play(house.address, n) for c, n in acts.items()]

    acts = {1: 31, 2: 8, 3: 2, 4: 1, 5: 17}
    house.attend(*playing(acts))
    returning = {6: 12, 7: 23}
    house.attend(*playing(returning))
    found = house.steps()
    assert set(found.values()) == {1}
    for client, number in (acts | returning).items():
        for row in range(WIDTH):
            mine = [step for step in found if step[0] == client * 10 + row]
            assert len(mine) == number - 1, f"client {client}"
    assert counted(house.told, "env_steps") == sum(found.values())
    assert counted(house.told, "dropped.broken_connection") == 0


def test_a_client_with_more_environments_takes_several_places(house):
    house.attend(lambda: CountingClient(1, 3 * WIDTH).play(house.address, 14))
    found = house.steps()
    assert len(found) == sum(found.values()) == 3 * WIDTH * 13
    with pytest.raises(Refused, match="3 environments came on one stream, expected was a multiple"):
        house.attend(lambda: CountingClient(1, 3).play(house.address, 1))


def test_who_leaves_after_an_episode_tells_how_it_ended(house):
    def play() -> None:
        for number in range(4):
            simulator = CountingClient(number)
            with PolicyClient(house.address, WIDTH, OBSERVATION, ACTION) as policy:
                policy.act(simulator.see())
                for _ in range(3):
                    policy.act(*simulator.step())
                _, rewards, *_ = simulator.step()
                end = [[number * 10 + row, 0, 4] for row in range(WIDTH)]
                policy.leave(end, rewards, terminated=[True] * WIDTH)

    house.attend(play)
    assert len(house.steps()) == 4 * 4 * WIDTH
    ends = [each["terminated"].sum() for each in house.trajectories]
    assert sum(ends) >= 4 * WIDTH


def step_bytes(**entries) -> bytes:
    step = pb.Step(**{"observation": [bytes(24)], **entries})
    return pb.Request(step=step).SerializeToString()


GARBAGE = {
    "noise": b"\x93\x01 no message",
    "short": step_bytes(observation=[b"1234"]),
    "two arrays": step_bytes(observation=[bytes(24)] * 2),
    "not finite": step_bytes(observation=[np.full((2, 3), np.nan, np.float32).tobytes()]),
    "rewards": step_bytes(reward=[1.0, 2.0, 3.0]),
    "ends": step_bytes(ended=b"\7\7"),
    "no final": step_bytes(ended=b"\2\0"),
    "oversized": bytes(2 << 20),
    "hello": pb.Request(hello=pb.Hello(protocol=1, environments=WIDTH)).SerializeToString(),
}


def test_garbage_is_named_and_disturbs_nobody(house):
    said = {}

    def send(name: str) -> None:
        simulator = CountingClient(9)
        hello = pb.Request(hello=pb.Hello(protocol=1, environments=WIDTH)).SerializeToString()
        seen = np.array(simulator.see(), np.float32).tobytes()
        honest = pb.Request(step=pb.Step(observation=[seen])).SerializeToString()
        ready = threading.Semaphore(0)

        def messages():
            yield hello
            yield honest
            ready.acquire()
            yield GARBAGE[name]

        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(house.address, options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(messages(), timeout=20)
            next(call), next(call)
            ready.release()
            with pytest.raises(grpc.RpcError) as refusal:
                list(call)
        said[name] = (refusal.value.code().name, refusal.value.details())

    honest = CountingClient(1)
    house.attend(lambda: honest.play(house.address, 60), lambda: [send(name) for name in GARBAGE])
    found = house.steps()
    assert len([step for step in found if step[0] < 20]) == 59 * WIDTH
    assert not [step for step in found if step[0] >= 90], "one answered row is no step yet"
    assert "expected were 24: float32 (2, 3)" in said["short"][1]
    assert "expected were observation float32 (3,)" in said["two arrays"][1]
    assert "not finite" in said["not finite"][1]
    assert "expected were 2" in said["rewards"][1]
    assert "1 (terminated) or 2 (truncated)" in said["ends"][1]
    assert "expected were observation" in said["no final"][1]
    assert said["oversized"][0] == "RESOURCE_EXHAUSTED"
    others = {code for name, (code, _) in said.items() if name != "oversized"}
    assert others == {"INVALID_ARGUMENT"}


def test_a_full_house_lets_others_wait_until_somebody_leaves(house):
    clients = [lambda c=c: CountingClient(c).play(house.address, 12) for c in range(PLACES + 3)]
    house.attend(*clients)
    assert sum(house.steps().values()) == (PLACES + 3) * 11 * WIDTH


def test_a_stream_that_only_says_hello_ends(house, monkeypatch):
    monkeypatch.setattr("veldt.wire.transport._BEGIN_SECONDS", 0.5)
    hello, codes = pb.Hello(protocol=1, environments=WIDTH), []

    def come(then: Callable[[], object]) -> None:
        def messages():
            yield pb.Request(hello=hello).SerializeToString()
            then()

        with grpc.insecure_channel(house.address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(messages(), timeout=20)
            with suppress(grpc.RpcError):
                list(call)
            codes.append(call.code().name)

    house.attend(lambda: come(int))
    silent = [lambda: come(lambda: time.sleep(2.0)) for _ in range(PLACES)]
    house.attend(*silent, lambda: CountingClient(1).play(house.address, 3))
    assert codes == ["OK"] + ["UNAVAILABLE"] * PLACES


def test_other_spaces_are_refused_by_name(house):
    def come() -> None:
        PolicyClient(house.address, WIDTH, spaces.Discrete(4), ACTION).act([1, 2])

    with pytest.raises(Refused, match=r"'shape': .3.* is expected here, yours is .*'n': 4"):
        house.attend(come)


def test_episodes_are_counted_with_raw_rewards_while_clipped_ones_are_learned_from():
    house = House(recurrent="lstm", last_action_and_reward=True)
    house.role.reward_clip = 1.0
    house.attend(lambda: CountingClient(1).play(house.address, 21))
    house.role.close()
    rewards = np.concatenate(
        [each["reward"][:-1][~each["ignored"][:-1]] for each in house.trajectories]
    )
    assert set(rewards) == {1.0}
    snapshot = house.told.telemetry.snapshot()
    returns, lengths = snapshot.new_episodes(0)
    assert lengths[0] == 3
    assert returns[0] == sum(reward_of((10, 0, count)) for count in range(3))
    assert counted(house.told, "aborted_episodes") == WIDTH
