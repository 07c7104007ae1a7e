# SPDX-License-Identifier: Apache-2.0
"""`veldt` as a user starts it, and what is left of it afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

import veldt
from veldt.checkpoints.store import CheckpointStore

ROOT = str(Path(veldt.__file__).parent.parent)
HERE = str(Path(__file__).parent)
PATIENCE_SECONDS = 60.0


def start(folder: Path, *words: str, within: tuple[str, ...] = (), **settings) -> subprocess.Popen:
    """A command in a session of its own; environments beside the tests are found. `within` is a
    program that runs it."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
    return subprocess.Popen(
        [*within, sys.executable, "-m", "veldt", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        # A shell starts background jobs, and so perhaps this suite, with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **given,
    )


def run(folder: Path, *words: str, timeout: float = 100.0, **more) -> subprocess.CompletedProcess:
    """The same, to its end."""
    with started(folder, *words, **more) as process:
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def started(folder: Path, *words: str, **settings) -> Iterator[subprocess.Popen]:
    """The same, killed at the end of the block if it still runs."""
    process = start(folder, *words, **settings)
    try:
        yield process
    finally:
        end(process)


def terminated(process: subprocess.Popen) -> str:
    """Send SIGTERM; the run must end in order. Returns what it wrote to standard error."""
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return err


def end(process: subprocess.Popen, whole_group: bool = False) -> None:
    if process.poll() is None:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate()


def wait_for_training(run_dir: Path, process: subprocess.Popen) -> None:
    """Until environments have been stepped: a line of metrics alone is also written before."""
    metrics = run_dir / "metrics.jsonl"
    wait_until(
        lambda: metrics.exists() and re.search(r'"env_steps": [1-9]', metrics.read_text()),
        "training",
        process,
    )


def wait_until(condition: Callable[[], object], what: str, process: subprocess.Popen) -> None:
    """Until something is so of a command that goes on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


def last_metrics(run_dir: Path) -> dict:
    """The last whole line of them."""
    lines = (run_dir / "metrics.jsonl").read_text().split("\n")
    return json.loads(lines[-2])


def wait_for_more_steps(run_dir: Path, process: subprocess.Popen) -> None:
    before = last_metrics(run_dir)["env_steps"]
    wait_until(lambda: last_metrics(run_dir)["env_steps"] > before, "more steps", process)


def wait_until_it_listens(process: subprocess.Popen) -> None:
    """Until a command handles SIGTERM. Python itself takes a while to start, longer on a machine
    that has forgotten its files, and no program can hear before it runs."""
    status = Path(f"/proc/{process.pid}/status")
    wait_until(
        lambda: int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) >> 14 & 1,
        "a handler of SIGTERM",
        process,
    )


def session_of(leader: int) -> list[psutil.Process]:
    """Everything that a command has started and that is still there."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def left_after(leader: int, seconds: float = 3.0) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while (left := session_of(leader)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def saved(run_dir: Path) -> tuple[dict, bool]:
    """result.json, and whether the newest checkpoint is complete."""
    checkpoint = CheckpointStore(run_dir / "checkpoints").newest()
    result = json.loads((run_dir / "result.json").read_text())
    return result, checkpoint is not None and bool(checkpoint.meta["complete"])
