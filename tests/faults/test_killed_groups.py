# SPDX-License-Identifier: Apache-2.0
"""The whole process group of a run is killed, again and again: nothing of it is left."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

import veldt

ROOT = str(Path(veldt.__file__).parent.parent)
KILLS = int(os.environ.get("VELDT_GROUP_KILLS", 4))  # 50 at night
GONE_SECONDS = 2.0


def start(run_dir: Path) -> subprocess.Popen:
    """SEED RL: memory, pipes, and a socket with a directory of its own."""
    words = ["train", "seed_rl", "--env", "CartPole-v1", "--num-actors", "2", "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-m", "veldt", *words, "--envs-per-actor", "2", "--run-dir", str(run_dir)],
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def session_of(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_for_training(run_dir: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    metrics = run_dir / "metrics.jsonl"
    while not (metrics.exists() and '"updates"' in metrics.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def socket_directories(folder: Path) -> list[Path]:
    return list(folder.glob("veldt-streams-*"))


def is_of_the_dead(path: Path) -> bool:
    return not Path("/proc", path.name.split("-")[2]).exists()


def exposed(processes: list[psutil.Process]) -> list[object]:
    """Sockets that another machine could reach."""
    sockets = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            sockets += process.net_connections("inet")
    return [each for each in sockets if each.laddr and each.laddr.ip not in ("127.0.0.1", "::1")]


def test_nothing_is_left_of_a_killed_group(tmp_path, temporary_folder):
    """Half of the kills strike while the run is still starting."""
    draw, names = random.Random(7), set(os.listdir("/dev/shm"))
    orphans, open_doors = 0, 0
    for number in range(KILLS):
        run_dir = tmp_path / f"run-{number}"
        process = start(run_dir)
        try:
            if number % 2:
                time.sleep(draw.uniform(0.3, 2.5))
            else:
                wait_for_training(run_dir, process)
                open_doors += len(exposed(session_of(process.pid)))
                found = socket_directories(temporary_folder)
                own = [path for path in found if f"-{process.pid}-" in path.name]
                assert len(own) == 1
                assert stat.S_IMODE(own[0].stat().st_mode) == 0o700
                assert not [path for path in found if is_of_the_dead(path)]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        began = time.monotonic()
        while (left := session_of(process.pid)) and time.monotonic() < began + GONE_SECONDS:
            time.sleep(0.02)
        orphans += len(left)
    leaked = sum(
        os.stat(f"/dev/shm/{name}").st_size
        for name in set(os.listdir("/dev/shm")) - names
        if "veldt" in name
    )
    assert orphans == leaked == open_doors == 0
