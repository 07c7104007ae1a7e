# SPDX-License-Identifier: Apache-2.0
"""A policy that is served acts as the one that is held; clients do not disturb each other."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from policies import CASES, batches, policy_of, rows_of
from veldt_client import PolicyClient, Refused

import veldt
from veldt.commands.serve import PolicyService
from veldt.errors import ConfigurationError
from veldt.wire.external import METHOD, SERVICE
from veldt.wire.security import from_environment

ROOT = Path(veldt.__file__).parent.parent
HERE = "127.0.0.1:0"


@contextmanager
def served(policy):
    """The service in a thread of its own, and its address."""
    service, ended = PolicyService(policy, HERE), threading.Event()

    def loop() -> None:
        while not ended.is_set():
            if not service.step():
                ended.wait(0.001)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield service, f"127.0.0.1:{service.port}"
    finally:
        ended.set()
        thread.join()
        service.close()


@pytest.mark.parametrize("name", CASES)
def test_actions_are_those_of_the_policy(name):
    """One environment, and three that are stepped together, with ends of episodes and masks."""
    policy, copy = policy_of(name), policy_of(name)
    size, ended = policy.num_choices if "mask" in CASES[name][4] else 0, [False, True, False]
    states = [policy.initial_state(1), policy.initial_state(3)] if policy.has_memory else [None] * 2
    with (
        served(copy) as (_, address),
        PolicyClient(address) as one,
        PolicyClient(address, 3) as three,
    ):
        for step, batch in enumerate(batches(policy, 6)):
            flags = ended if step == 3 else [False] * 3
            rewards = np.array([0.5, -1.0, 2.0], np.float32) * (step > 0)
            mask = np.arange(4 * size).reshape(4, size) % 3 != step % 3 if size else None
            each = rows_of(policy, batch)
            parts = [each[:1], each[1:]]
            if states[1] is not None:
                states[1].reset(np.array(flags))
            expected = [
                policy.act(
                    _part(batch, rows),
                    state,
                    None if mask is None else mask[rows],
                    reward=reward if state is not None else None,
                )
                for rows, state, reward in (
                    (slice(0, 1), states[0], rewards[:1]),
                    (slice(1, 4), states[1], rewards),
                )
            ]
            alone = one.act(parts[0][0], rewards[0], mask=None if mask is None else mask[0])
            together = three.act(
                parts[1], rewards, terminated=flags, mask=None if mask is None else mask[1:]
            )
            assert _alike(expected[0][0], alone)
            assert _alike(expected[1], together)


def _alike(expected: np.ndarray, given) -> bool:
    """Equal; numbers that torch computed in another thread, up to rounding."""
    if expected.dtype.kind == "f":
        return np.allclose(expected, given, atol=1e-5)
    return np.array_equal(expected, given)


def _part(batch, rows):
    if isinstance(batch, dict):
        return {key: _part(entry, rows) for key, entry in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_part(entry, rows) for entry in batch)
    return batch[rows]


def test_what_waits_is_answered_in_one_forward_pass():
    service, answered = PolicyService(policy_of("lstm"), HERE), []

    def ask(width: int) -> None:
        with PolicyClient(f"127.0.0.1:{service.port}", width) as policy:
            together.wait(policy.welcome and 20.0)
            answered.append(len(policy.act(np.zeros((width, 4), np.float32))))

    together = threading.Barrier(4)
    threads = [threading.Thread(target=ask, args=(width,)) for width in (1, 2, 5)]
    for thread in threads:
        thread.start()
    while together.n_waiting < 3:
        service.step()
    together.wait(20.0)
    time.sleep(0.5)  # all three have asked, and no request was read
    while len(answered) < 3:
        service.step()
    for thread in threads:
        thread.join()
    service.close()
    assert sorted(answered) == [1, 2, 5]
    assert (service.requests, service.forward_passes) == (3, 1)


def test_a_request_that_makes_no_sense_is_named_and_disturbs_no_other_client():
    policy, copy = policy_of("gru"), policy_of("gru")
    state = policy.initial_state()
    with served(copy) as (service, address), PolicyClient(address) as honest:

        def both_agree(step: int) -> None:
            observation = np.full(4, 0.1 * step, np.float32)
            expected = policy.act(observation, state, reward=float(step))
            assert _alike(expected, honest.act(observation, step))

        both_agree(0)
        with pytest.raises(ValueError, match=r"has 8 bytes, but \(1, 4\) numbers of float32"):
            PolicyClient(address).act([1.0, 2.0])
        with pytest.raises(Refused, match="'observation' is not finite"):
            PolicyClient(address).act([1.0, 2.0, 3.0, float("nan")])
        both_agree(1)
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([b"\xff\xff nonsense"]))
            with pytest.raises(grpc.RpcError) as refusal:
                list(call)
            assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "no veldt.Request" in refusal.value.details()
        both_agree(2)
        assert sum(service.refused.values()) == 2


def test_a_token_is_required_where_one_is_set_and_on_other_machines(monkeypatch):
    monkeypatch.setenv("VELDT_TOKEN", "a secret")
    with served(policy_of("discrete")) as (_, address):
        assert PolicyClient(address).act(np.zeros(4)) in (-1, 0, 1)
        with pytest.raises(Refused, match="unknown token"):
            PolicyClient(address, token="another").act(np.zeros(4))
    monkeypatch.delenv("VELDT_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="VELDT_TOKEN, VELDT_CERTIFICATE and VELDT_KEY"):
        from_environment("0.0.0.0:5000")


WITHOUT = """
import sys
for name in ("torch", "veldt", "gymnasium", "rich", "psutil"):
    sys.modules[name] = None  # importing it fails
from veldt_client import PolicyClient
with PolicyClient(sys.argv[1]) as policy:
    actions = [int(policy.act([0.0, 0.1 * number, 0.0, 0.0])) for number in range(5)]
print(actions, [type(action).__name__ for action in actions])
"""


@pytest.mark.slow
def test_the_command_serves_a_client_without_torch_and_ends_cleanly(short_run):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/client"}
    command = [sys.executable, "-m", "veldt", "serve", str(short_run), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        serving = json.loads(server.stdout.readline())
        assert serving["address"] == f"127.0.0.1:{serving['port']}"
        client = [sys.executable, "-c", WITHOUT, serving["address"]]
        done = subprocess.run(client, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        policy = veldt.load(short_run)
        acts = [int(policy.act(np.array([0, 0.1 * k, 0, 0], np.float32))) for k in range(5)]
        assert done.stdout.strip() == f"{acts} {['int'] * 5}"
        server.send_signal(signal.SIGTERM)
        assert json.loads(server.stdout.readline())["requests"] == 5
        assert server.wait(20) == 0
