# SPDX-License-Identifier: Apache-2.0
"""What is left of a run that is killed: processes, Ray clusters, sockets, temporary files."""

import os
import random
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import commands
import psutil
import pytest

pytestmark = pytest.mark.slow

TRAIN = ("train", "seed_rl", "--env", "CartPole-v1", "--num-actors", "1", "--quiet")


@pytest.mark.parametrize(
    ("victim", "message"),
    [
        ("gcs_server", "veldt: ray failed: the head of the cluster at 127.0.0.1:"),
        ("raylet", "veldt: ray failed: Ray's node on this machine at 127.0.0.1:"),
    ],
)
def test_a_run_whose_ray_dies_ends_with_one_line_and_names_its_checkpoint(
    victim, message, tmp_path
):
    words = ("train", "impala", "--env", "CartPole-v1", "--num-actors", "1", "--quiet")
    limits = ("--backend", "ray", "--envs-per-actor", "2", "--checkpoint-options", "seconds=1")
    process = commands.start(tmp_path, *words, *limits, "--run-dir", "run")
    try:
        commands.wait_until(
            lambda: list(tmp_path.glob("run/checkpoints/checkpoint-*")), "a checkpoint", process
        )
        children = psutil.Process(process.pid).children(recursive=True)
        next(each for each in children if each.name() == victim).kill()
        _, err = process.communicate(timeout=50)
    finally:
        commands.end(process)
    assert process.returncode == 1
    [line] = [line for line in err.splitlines() if not line.startswith("[")]  # Ray's own log
    assert line.startswith(message)
    assert str(tmp_path / "run/checkpoints/checkpoint-") in line
    assert commands.saved(tmp_path / "run")[1]


def ray_of(process: subprocess.Popen) -> list[psutil.Process]:
    """All that a run on Ray has started, once the head of its cluster is there."""
    deadline = time.monotonic() + commands.PATIENCE_SECONDS
    while True:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
            if any("gcs_server" in child.name() for child in children):
                return children
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_on_ray_that_is_killed_while_it_starts_takes_ray_with_it(tmp_path):
    process = commands.start(tmp_path, *TRAIN, "--backend", "ray", "--run-dir", "run")
    try:
        started = ray_of(process)
    finally:
        commands.end(process)
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert commands.left_after(process.pid, 20) == []


LONG = ("--total-env-steps", "100000000")
NEW_PID_NAMESPACE = ("unshare", "-r", "-p", "-f", "--mount-proc")


def sockets(folder: Path) -> set[Path]:
    return set(folder.glob("**/socket"))


def test_temporary_files_of_a_killed_run_go_and_those_of_a_live_one_stay(
    tmp_path, temporary_folder
):
    """The next run is in a container of its own, which sees the process of neither."""
    if subprocess.run([*NEW_PID_NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    words = ("train", "impala", "--env", "CartPole-v1", "--quiet", "--total-env-steps", "200")
    limits = ("--evaluation-episodes", "0", "--run-dir", "next")
    with commands.started(tmp_path, *TRAIN, *LONG, "--run-dir", "live") as live:
        commands.wait_for_training(tmp_path / "live", live)
        own = sockets(temporary_folder)
        with commands.started(tmp_path, *TRAIN, *LONG, "--run-dir", "killed") as killed:
            commands.wait_for_training(tmp_path / "killed", killed)
            assert len(sockets(temporary_folder)) == 2
            os.killpg(killed.pid, signal.SIGKILL)
            assert commands.left_after(killed.pid) == []
        with commands.started(tmp_path, *words, *limits, within=NEW_PID_NAMESPACE) as following:
            _, err = following.communicate(timeout=100)
        assert following.returncode == 0, err
        assert sockets(temporary_folder) == own
        assert len(list(temporary_folder.glob("pymp-*"))) == 1


KILLS = int(os.environ.get("VELDT_GROUP_KILLS", 4))


def reachable(processes: list[psutil.Process]) -> list[object]:
    """Sockets that another machine could connect to."""
    sockets = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            sockets += process.net_connections("inet")
    return [each for each in sockets if each.laddr and each.laddr.ip not in ("127.0.0.1", "::1")]


def test_nothing_is_left_of_a_killed_group(tmp_path, temporary_folder):
    """Half of the kills come while the run is still starting."""
    draw, names = random.Random(7), set(os.listdir("/dev/shm"))
    for number in range(KILLS):
        run_dir = tmp_path / f"run-{number}"
        process = commands.start(tmp_path, *TRAIN, "--run-dir", str(run_dir))
        try:
            if number % 2:
                time.sleep(draw.uniform(0.3, 2.5))
            else:
                commands.wait_for_training(run_dir, process)
                assert reachable(commands.session_of(process.pid)) == []
                [own] = sockets(temporary_folder)
                assert {stat.S_IMODE(path.stat().st_mode) for path in own.parents[:2]} == {0o700}
        finally:
            commands.end(process, whole_group=True)
        assert commands.left_after(process.pid) == []
    assert not [name for name in set(os.listdir("/dev/shm")) - names if "veldt" in name]
