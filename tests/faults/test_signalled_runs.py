# SPDX-License-Identifier: Apache-2.0
"""What `timeout`, systemd and Slurm send: to a group or to every process, at any moment, twice. The
run ends in order each time. So it does when the fork server alone is killed."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import commands
import psutil
import pytest

pytestmark = pytest.mark.slow

SIGNALS = int(os.environ.get("VELDT_GROUP_SIGNALS", 2))  # 50 at night
# Steps enough that no run ends by itself before it is struck: a fast machine takes the default
# number of them within a few seconds.
STEPS = "1000000000"
TRAIN = (
    *("train", "impala", "--env", "CartPole-v1", "--quiet"),
    *("--run-dir", "run", "--total-env-steps", STEPS),
)


def send(number: int, process, way: str) -> None:
    if way == "every process":
        for member in commands.session_of(process.pid):
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)
        return
    os.killpg(process.pid, number)
    if way == "twice":
        time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def fork_server_of(process) -> psutil.Process | None:
    for each in psutil.Process(process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "forkserver" in " ".join(each.cmdline()):
                return each
    return None


def restarts(run_dir: Path) -> int:
    nodes = json.loads((run_dir / "status.json").read_text())["nodes"]
    return sum(node["restarts"] for node in nodes.values())


@pytest.mark.parametrize("way", ["group", "every process", "twice"])
def test_a_terminated_job_keeps_its_result_and_a_complete_checkpoint(way, tmp_path):
    """At random times, also while the run is still starting."""
    draw = random.Random(way)
    for number in range(SIGNALS):
        folder = tmp_path / str(number)
        folder.mkdir()
        seconds = ("--checkpoint-options", "seconds=2")
        with commands.started(folder, *TRAIN, *seconds) as process:
            commands.wait_until_it_listens(process)
            time.sleep(draw.uniform(0.0, 5.0))  # checkpoints are two seconds apart
            send(signal.SIGTERM, process, way)
            _, err = process.communicate(timeout=commands.PATIENCE_SECONDS)
        there = sorted(file.name for file in folder.rglob("*"))
        assert process.returncode == 0, (err, there)
        assert not err
        result, complete = commands.saved(folder / "run")
        assert result["stopped_by"] == "interrupt"
        assert complete
        assert commands.left_after(process.pid) == []
    steps = result["env_steps"] + 2000
    done = commands.run(folder, "resume", "run", "--quiet", "--total-env-steps", str(steps))
    assert done.returncode == 0, done.stderr
    assert commands.saved(folder / "run")[0]["env_steps"] >= steps


def test_ctrl_c_twice_keeps_everything_and_says_so_in_the_exit_code(tmp_path):
    with commands.started(tmp_path, *TRAIN) as process:
        commands.wait_for_training(tmp_path / "run", process)
        send(signal.SIGINT, process, "twice")
        _, err = process.communicate(timeout=commands.PATIENCE_SECONDS)
    assert process.returncode == 130, err
    assert commands.saved(tmp_path / "run")[1]


def is_alive(process: psutil.Process) -> bool:
    """False also for one that has died and was not reaped yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_without_its_fork_server_a_run_continues_and_replaces_nodes(fault, tmp_path):
    run_dir = tmp_path / "run"
    with commands.started(tmp_path, *TRAIN, "--num-actors", "2") as process:
        commands.wait_for_training(run_dir, process)
        server = fork_server_of(process)
        nodes = server.children()
        assert len(nodes) == 3
        getattr(server, fault)()
        nodes[0].kill()
        commands.wait_until(lambda: restarts(run_dir) == 1, "its successor", process)
        assert all(is_alive(node) for node in nodes[1:])
        assert (fork_server_of(process) == server) == (fault == "suspend")
        commands.terminated(process)
    result, complete = commands.saved(run_dir)
    assert result["stopped_by"] == "interrupt"
    assert complete
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize("way", ["group", "twice"])
def test_a_run_on_ray_that_is_ended_while_it_starts_keeps_its_result(way, tmp_path):
    """Neither Ray's library nor its processes may end at the signal before the run does."""
    draw = random.Random(way)
    for number in range(SIGNALS):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = commands.start(folder, *TRAIN, "--backend", "ray", "--num-actors", "1")
        try:
            commands.wait_until_it_listens(process)
            time.sleep(draw.uniform(0.0, 5.0))
            send(signal.SIGTERM, process, way)
            _, err = process.communicate(timeout=commands.PATIENCE_SECONDS)
        finally:
            commands.end(process)
        assert process.returncode == 0, err
        assert not err
        assert commands.saved(folder / "run")[0]["stopped_by"] == "interrupt"
        assert commands.left_after(process.pid) == []
