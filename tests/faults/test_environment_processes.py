# SPDX-License-Identifier: Apache-2.0
"""No process of an environment is left behind when its run ends or is killed."""

import signal
import time

import commands
import psutil
import pytest

pytestmark = pytest.mark.slow

TRAIN = (
    *("train", "impala", "--num-actors", "1", "--envs-per-actor", "2", "--quiet"),
    *("--evaluation-episodes", "0", "--run-dir", "run"),
)


def programs(leader: int, count: int) -> list[psutil.Process]:
    """The programs that environments of a run have started, once there are so many."""
    deadline = time.monotonic() + commands.PATIENCE_SECONDS
    while True:
        found = [each for each in commands.session_of(leader) if each.name() == "sleep"]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} programs"
        time.sleep(0.1)


def test_programs_of_environments_end_with_a_run_that_is_killed(tmp_path):
    env = ("--env", "faulty_environments:WithProgram")
    with commands.started(tmp_path, *TRAIN, *env) as process:
        commands.wait_for_training(tmp_path / "run", process)
        programs(process.pid, 2)
        process.kill()
        process.communicate(timeout=100)
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize(
    ("backend", "number"), [("process", signal.SIGTERM), ("serial", signal.SIGKILL)]
)
def test_environments_that_spin_end_with_the_run(backend, number, tmp_path):
    env = ("--env", "faulty_environments:Spinning")
    with commands.started(tmp_path, *TRAIN, *env, "--backend", backend) as process:
        commands.wait_until(lambda: list(tmp_path.glob("spins-*")), "the loop", process)
        process.send_signal(number)
        process.communicate(timeout=100)
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize(
    "ends", ["--total-env-steps 2000", "--max-seconds 12 --env-options seconds=60"]
)
def test_an_async_vector_env_leaks_no_semaphore(ends, tmp_path):
    env = ("--env", "faulty_environments:in_processes")
    ended = commands.run(tmp_path, *TRAIN, *env, *ends.split())
    assert ended.returncode == 0
    assert not any(word in ended.stderr for word in ("leaked", "Error")), ended.stderr
