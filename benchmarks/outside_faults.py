# SPDX-License-Identifier: Apache-2.0
"""Faults that come from outside a run: a SIGTERM to its whole process group, as `timeout`, systemd
and Slurm send it, the death of a process that no node is, or a full disk. Each at a random moment.

A try is kept if the run ended with exit code 0, left result.json and a complete newest checkpoint,
and no process; a full disk has no room for result.json. Some of the runs are then resumed for a
second."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import RESULTS, ROOT, machine, print_table, save

from veldt.checkpoints.store import CheckpointError, CheckpointStore

Try = dict[str, Any]
_EARLIEST_SECONDS, _LATEST_SECONDS = 1.5, 8.0
_RUN_SECONDS = 15.0  # of runs that go on after their fault
_END_SECONDS = 120.0
_ORPHAN_SECONDS = 3.0
_RESUMED = 5
_LAST_WORDS = 300
_SMALL_DISK, _FILLER = "200m", "filler"


def members(session: int) -> list[psutil.Process]:
    """All processes of a command that was started in a session of its own."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def terminate_group(leader: int, run_dir: Path) -> bool:
    os.killpg(leader, signal.SIGTERM)
    return True


def kill_fork_server(leader: int, run_dir: Path) -> bool:
    """The one that makes nodes: a child of the run itself."""
    return _kill_first(
        child
        for child in psutil.Process(leader).children()
        if "forkserver" in " ".join(child.cmdline())
    )


def fill_disk(leader: int, run_dir: Path) -> bool:
    """Once there is a checkpoint that could be lost."""
    if not list(run_dir.glob("checkpoints/checkpoint-*")):
        return False
    with suppress(OSError), open(run_dir.parent / _FILLER, "ab", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    return True


def _kill_first(found: Any) -> bool:
    """Whether there was one."""
    with suppress(psutil.NoSuchProcess):
        for process in found:
            process.kill()
            return True
    return False


@dataclass(frozen=True)
class Fault:
    """What is done to a run, and when."""

    strike: Callable[[int, Path], bool]
    """Of the run's first process and its directory; whether there was something to strike."""
    options: tuple[str, ...] = ()
    """Of the run."""
    when_training: bool = False
    """Count the seconds from the first env steps on and not from the start, which on a busy machine
    may take longer than the latest moment."""
    fills_disk: bool = False
    """Whether the run has a small disk of its own."""


_LIMIT = ("--max-seconds", str(_RUN_SECONDS))
KINDS = {
    "group_signal": Fault(terminate_group),
    "group_signal_when_training": Fault(terminate_group, when_training=True),
    "fork_server": Fault(kill_fork_server, _LIMIT),
    "full_disk": Fault(fill_disk, ("--checkpoint-options", "seconds=1", *_LIMIT), fills_disk=True),
}


def tried(architecture: str, env: str, kind: str, seconds: float, run_dir: Path) -> Try:
    """One run that is struck `seconds` after its start."""
    fault = KINDS[kind]
    words = [
        *(sys.executable, "-m", "veldt", "train", architecture, "--env", env, "--quiet"),
        *("--evaluation-episodes", "0", "--run-dir", str(run_dir), *fault.options),
    ]
    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        while fault.when_training and process.poll() is None and not has_steps(run_dir):
            time.sleep(0.05)
        time.sleep(seconds)
        hit = fault.strike(process.pid, run_dir)
        while not hit and process.poll() is None:  # what is to be killed is not there yet
            time.sleep(0.05)
            hit = fault.strike(process.pid, run_dir)
        struck_at = time.monotonic()
        _, stderr = process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        stderr = f"did not end within {_END_SECONDS:.0f} s"
    finally:
        ended = time.monotonic()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    orphans = left_after(process.pid)
    return {
        "struck_after_seconds": round(struck_at - began, 2),
        "ended_after_seconds": round(ended - struck_at, 2),
        "struck": hit,
        "exit_code": process.returncode,
        "orphans": orphans,
        **saved(run_dir),
        **({"words": stderr.strip()[-_LAST_WORDS:]} if process.returncode else {}),
    }


def has_steps(run_dir: Path) -> bool:
    metrics = run_dir / "metrics.jsonl"
    return metrics.exists() and bool(re.search(r'"env_steps": [1-9]', metrics.read_text()))


def left_after(session: int) -> int:
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while (left := len(members(session))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def saved(run_dir: Path) -> Try:
    """What the run left in its directory."""
    path = run_dir / "result.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    checkpoint = None
    with suppress(CheckpointError):
        checkpoint = CheckpointStore(run_dir / "checkpoints").newest()
    return {
        "has_result": result is not None,
        "env_steps": result["env_steps"] if result is not None else None,
        "checkpoint_is_complete": checkpoint is not None and bool(checkpoint.meta["complete"]),
    }


def is_kept(entry: Try, fault: Fault) -> bool:
    whole = (entry["has_result"] or fault.fills_disk) and entry["checkpoint_is_complete"]
    return bool(entry["struck"] and entry["exit_code"] == 0 and whole and not entry["orphans"])


def resumed(run_dir: Path) -> bool:
    """Whether the run goes on for a second and ends as it should."""
    words = [sys.executable, "-m", "veldt", "resume", str(run_dir), "--quiet"]
    limits = ["--max-seconds", "1", "--evaluation-episodes", "0"]
    done = subprocess.run(
        [*words, *limits], cwd=ROOT, capture_output=True, timeout=_END_SECONDS, check=False
    )
    return done.returncode == 0 and bool(saved(run_dir)["checkpoint_is_complete"])


@contextmanager
def disk(is_small: bool) -> Iterator[Path]:
    """A folder that is gone afterwards, on a disk of its own if that is to be filled."""
    with tempfile.TemporaryDirectory(prefix="veldt-outside-") as directory:
        if not is_small:
            yield Path(directory)
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", directory]
        subprocess.run(mount, check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


def measured(architecture: str, env: str, kind: str, tries: int) -> dict[str, Any]:
    """`tries` runs, each struck at its own random moment; the first ones are resumed."""
    draw, entries, fault = random.Random(kind), [], KINDS[kind]
    for number in range(tries):
        seconds = draw.uniform(_EARLIEST_SECONDS, _LATEST_SECONDS)
        with disk(fault.fills_disk) as directory:
            run_dir = directory / "run"
            entry = tried(architecture, env, kind, seconds, run_dir)
            (directory / _FILLER).unlink(missing_ok=True)
            if number < _RESUMED:
                entry["resumed"] = resumed(run_dir)
        entries.append({"kept": is_kept(entry, fault), **entry})
        print(json.dumps({"kind": kind, "try": number + 1, **entries[-1]}), flush=True)
    return {
        "tries": tries,
        "kept": sum(entry["kept"] for entry in entries),
        "resumed": sum(entry.get("resumed", False) for entry in entries),
        "orphans": sum(entry["orphans"] for entry in entries),
        "entries": entries,
    }


def kept(architectures: list[str], kinds: list[str]) -> list[dict[str, Any]]:
    """Earlier figures of what is not run now."""
    path = RESULTS / "outside_faults.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return [
        run
        for run in earlier
        if not (run["architecture"] in architectures and run["kind"] in kinds)
    ]


def main(architectures: list[str], env: str, kinds: list[str], tries: int) -> None:
    if os.geteuid() and any(KINDS[kind].fills_disk for kind in kinds):
        print("a full disk is mounted for the purpose, which needs root: left out")
        kinds = [kind for kind in kinds if not KINDS[kind].fills_disk]
    about = machine()
    runs = kept(architectures, kinds)
    for architecture in architectures:
        for kind in kinds:
            figures = measured(architecture, env, kind, tries)
            run = {"architecture": architecture, "env": env, "kind": kind, "machine": about}
            runs.append({**run, **figures})
            save("outside_faults", {"runs": runs})
    header = ("architecture", "fault", "tries", "kept", "resumed", "orphans")
    names = ("architecture", "kind", "tries", "kept", "resumed", "orphans")
    print_table(header, [tuple(run[name] for name in names) for run in runs])
