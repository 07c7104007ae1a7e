# SPDX-License-Identifier: Apache-2.0
"""SEED RL as whole runs: the same bits on serial; over processes, broken actors and bad callers."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

import veldt
from veldt.backends.base import BackendOptions
from veldt.backends.process.backend import ProcessBackend
from veldt.backends.shared_memory.fabric import SocketLink, unix_link
from veldt.errors import ConfigurationError
from veldt.networks import NetworkFactory
from veldt.options import RunOptions
from veldt.role import leaves_of
from veldt.run.plan import Plan, make_plan
from veldt.wire.protocol import METHOD, SERVICE
from veldt.wire.security import TOKEN_HEADER

PATIENCE_SECONDS = 60.0
TINY = {
    "env": "CartPole-v1",
    "backend": "serial",
    "num_actors": 2,
    "envs_per_actor": 4,
    "trajectory_steps": 5,
    "total_env_steps": 1_200,
    "evaluation_episodes": 0,
    "network_options": {"hidden_sizes": (16,)},
}
TINY_R2D2 = {
    "architecture": "r2d2",
    "burn_in_steps": 5,
    "unroll_steps": 10,
    "batch_sequences": 4,
    "min_replay_sequences": 8,
    "network_options": {"hidden_sizes": (16,), "recurrent_size": 8},
}


def train(tmp_path, architecture="seed_rl", **options):
    run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    return veldt.train(architecture, **{**TINY, **options}, run_dir=str(run_dir))


VARIANTS = [
    {},
    {"groups_per_actor": 2},
    {"num_actors": 4},
    {
        "recurrent": "lstm",
        "network_options": {
            "hidden_sizes": (16,),
            "recurrent_size": 8,
            "last_action_and_reward": True,
        },
    },
    TINY_R2D2,
    {
        **TINY_R2D2,
        "recurrent": "gru",
        "network_options": {
            "hidden_sizes": (16,),
            "recurrent_size": 8,
            "last_action_and_reward": True,
        },
    },
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(options, tmp_path):
    first = train(tmp_path, seed=1, **options)
    again = train(tmp_path, seed=1, **options)
    other = train(tmp_path, seed=2, **options)
    assert first.updates >= 5
    assert first.parameters_sha256 == again.parameters_sha256
    assert (first.env_steps, first.updates) == (again.env_steps, again.updates)
    assert first.parameters_sha256 != other.parameters_sha256
    assert sum(first.dropped.values()) == 0


def test_r2d2_keeps_the_replay_ratio(tmp_path):
    plan = planned(backend="serial", **TINY_R2D2, replay_ratio=3.0)
    backend = make_serial(plan)
    for _ in range(30):
        backend.advance(0.0)
    counted = counters(backend)
    backend.stop()
    assert counted["replay.samples_per_insert"] == pytest.approx(3.0, rel=0.1)
    assert counted["updates"] > 50


def make_serial(plan: Plan):
    from veldt.backends.serial import SerialBackend

    backend = SerialBackend(plan.topology, 1)
    backend.start()
    return backend


def planned(
    architecture: str = "seed_rl", backend: str = "process", num_actors: int = 2, **own
) -> Plan:
    options = {
        "network_options": {"recurrent_size": own.pop("recurrent_size", 8), "hidden_sizes": (16,)}
    }
    run = RunOptions(
        env="CartPole-v1",
        backend=backend,
        num_actors=num_actors,
        envs_per_actor=4,
        total_env_steps=10**9,
        **options,
    )
    return make_plan(architecture, run, {"trajectory_steps": 5, **own})


@contextmanager
def running(**own) -> Iterator[ProcessBackend]:
    plan = planned(**own)
    backend = ProcessBackend(plan.topology, seed=1, options=BackendOptions(verify=True))
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()


def counters(backend) -> dict[str, float]:
    """All counters, summed over nodes."""
    found: dict[str, float] = {}
    for snapshot in backend.snapshots():
        for name, value in snapshot.counters.items():
            found[name] = found.get(name, 0.0) + value
    return found


def advance_until(backend, condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        backend.advance(0.02)


def updates(backend) -> float:
    return counters(backend).get("updates", 0.0)


def connections(backend) -> float:
    return counters(backend).get("wire.connections", 0.0)


def advance_until_all_take_part(backend, num_groups: int = 2) -> None:
    advance_until(backend, lambda: connections(backend) == num_groups, "all to connect")
    before = updates(backend)
    advance_until(backend, lambda: updates(backend) > before + 5, "updates")


def link_of(backend: ProcessBackend) -> SocketLink:
    (link,) = backend._fabric.streams.values()
    assert isinstance(link, SocketLink)
    return link


@pytest.mark.parametrize("options", [{}, {"groups_per_actor": 2}, TINY_R2D2], ids=str)
def test_it_trains_over_processes_and_leaves_nothing_behind(options):
    with running(**options) as backend:
        advance_until_all_take_part(backend, 2 * options.get("groups_per_actor", 1))
        directory = link_of(backend).directory
        assert counters(backend)["wire.bytes_up"] > 0
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        listening = [
            connection
            for pid in backend.process_ids().values()
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == []
    assert not directory.exists()


def test_an_actor_has_neither_weights_nor_a_way_to_them():
    plan = planned()
    backend = ProcessBackend(plan.topology, seed=1)
    try:
        actors = [node for node in plan.topology.nodes if node.kind == "actor"]
        part = backend._fabric.part_for(actors[:1])
        assert part.boards == {}
        assert part.queues == {}
        assert part.shared == {}
        assert set(part.streams) == {"stream"}
        assert not any(isinstance(value, NetworkFactory) for _, value in leaves_of(actors[0].role))
    finally:
        backend.stop()


def test_a_killed_actor_comes_back_with_a_new_connection_while_the_other_goes_on():
    with running() as backend:
        advance_until_all_take_part(backend)
        os.kill(backend.process_ids()["actor-0"], signal.SIGKILL)
        advance_until(backend, lambda: backend.restarts == 1, "the restart")
        advance_until(backend, lambda: connections(backend) == 3, "the new connection")
        before = updates(backend)
        advance_until(backend, lambda: updates(backend) > before + 20, "training to go on")
        counted = counters(backend)
        assert counted["dropped.broken_connection"] <= 1  # the one trajectory under way
        refused = {
            name: value for name, value in counted.items() if name.startswith("dropped.wire")
        }
        assert sum(refused.values()) == 0


def test_bad_callers_are_refused_and_counted_while_training_goes_on():
    with running() as backend:
        advance_until_all_take_part(backend)
        link = link_of(backend)
        with grpc.insecure_channel(link.address) as channel:
            infer = channel.stream_stream(f"/{SERVICE}/{METHOD}")

            def call(message: bytes, token: str) -> grpc.StatusCode:
                stream = infer(iter([message]), metadata=((TOKEN_HEADER, token),), timeout=30)
                with pytest.raises(grpc.RpcError) as caught:
                    list(stream)
                return caught.value.code()

            assert call(b"", "no token") == grpc.StatusCode.UNAUTHENTICATED
            assert call(b"garbage", link.security.token) == grpc.StatusCode.INVALID_ARGUMENT
            large = bytes(link.spec.request.nbytes + 1_000)
            assert call(large, link.security.token) == grpc.StatusCode.RESOURCE_EXHAUSTED
        before = updates(backend)
        advance_until(backend, lambda: updates(backend) > before + 10, "training to go on")
        counted = counters(backend)
        for reason in ("unauthenticated", "malformed", "oversized"):
            assert counted[f"dropped.wire_{reason}"] == 1
        assert counted["wire.connections"] == 2


def test_directories_of_killed_supervisors_are_tidied_up():
    spec = planned().topology.streams[0].spec
    mine = unix_link(spec)
    assert mine.directory is not None
    dead = Path(str(mine.directory).replace(f"-{os.getpid()}-", "-999999999-"))
    dead.mkdir()
    other = unix_link(spec)
    assert not dead.exists()
    assert mine.directory.exists()  # its supervisor lives
    for link in (mine, other):
        link.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "r2d2"}, "use r2d2"),
        ({"groups_per_actor": 3}, "equal groups"),
        ({**TINY_R2D2, "unroll_steps": 7}, "not a multiple of trajectory_steps"),
        ({**TINY_R2D2, "env": "Pendulum-v1"}, "discrete"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_the_start(options, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        train(tmp_path, **options)
