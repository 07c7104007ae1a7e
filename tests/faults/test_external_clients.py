# SPDX-License-Identifier: Apache-2.0
"""A run whose simulators are processes elsewhere: they are killed, come back and send garbage, and
the run is ended and resumed beside them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing

import grpc
import pytest
from commands import (
    ROOT,
    end,
    last_metrics,
    run,
    start,
    wait_for_more_steps,
    wait_for_training,
    wait_until,
)

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.wire.external import METHOD, SERVICE

pytestmark = pytest.mark.slow

EXAMPLE = f"{ROOT}/examples/external_cart_pole.py"
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "numba", "rich", "psutil", "tensorboard"):
    sys.modules[name] = None  # importing it fails
runpy.run_path(sys.argv.pop(1))
"""


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def simulator(address: str) -> subprocess.Popen:
    """The documented example, where there is no torch."""
    command = [sys.executable, "-c", WITHOUT_TORCH, EXAMPLE, address]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/client"})


def test_clients_die_come_back_send_garbage_and_outlive_the_run(tmp_path):
    address, run_dir = f"127.0.0.1:{free_port()}", tmp_path / "run"
    words = ["--env", f"external:{address}", "--run-dir", str(run_dir), "--max-seconds", "100"]
    training = start(tmp_path, "train", "seed_rl", *words)
    first = simulator(address)
    second = None
    try:
        wait_for_training(run_dir, training)
        first.kill()
        first.wait()
        note = f"no client is connected: waiting at {address}"
        events = run_dir / "events.jsonl"
        wait_until(lambda: events.exists() and note in events.read_text(), note, training)
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([b"\xff garbage"]))
            with pytest.raises(grpc.RpcError, match=r"no veldt\.Request"):
                list(call)
        second = simulator(address)
        wait_for_more_steps(run_dir, training)
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 0, training.communicate()
        result = json.loads((run_dir / "result.json").read_text())
        assert result["restarts"] == 0
        assert result["dropped"]["wire_malformed"] == 1
        assert result["updates"] > 0
        training = start(tmp_path, "resume", str(run_dir), "--max-seconds", "100")
        wait_until(
            lambda: last_metrics(run_dir)["env_steps"] > result["env_steps"], "steps", training
        )
        assert second.poll() is None, "the same client goes on with the resumed run"
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 0
        after = json.loads((run_dir / "result.json").read_text())["env_steps"]
        assert after > result["env_steps"]
    finally:
        for process in filter(None, (training, first, second)):
            end(process)


def test_a_run_that_nobody_comes_to_ends_in_time(tmp_path):
    spaces = {
        "observation_space": {"type": "Box", "shape": [2], "dtype": "float32", "low": 0, "high": 1},
        "action_space": {"type": "Discrete", "n": 2, "start": 0},
    }
    (tmp_path / "spaces.json").write_text(json.dumps(spaces))
    env = f"external:127.0.0.1:{free_port()}?spaces=spaces.json"
    done = run(
        tmp_path, "train", "seed_rl", "--env", env, "--max-seconds", "12", "--run-dir", "run"
    )
    assert done.returncode == 0, done.stderr
    assert "no client is connected: waiting at 127.0.0.1" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["stopped_by"], result["env_steps"]) == ("seconds", 0)


@pytest.mark.parametrize(
    ("architecture", "env", "options", "message"),
    [
        ("seed_rl", "external:127.0.0.1:5000", {"backend": "serial"}, "use --backend process"),
        ("impala", "external:127.0.0.1:5000", {}, "only seed_rl takes external:"),
        ("seed_rl", "external:here", {}, "names no host and port; write external:HOST:PORT"),
        (
            "seed_rl",
            "external:127.0.0.1:5000",
            {"wrappers": {"time_limit": 5}},
            "time_limit does not go with",
        ),
        ("seed_rl", "external:127.0.0.1:5000", {}, "append ?spaces=FILE"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(architecture, env, options, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make_plan(architecture, RunOptions(env=env, **options), {})
