# SPDX-License-Identifier: Apache-2.0
"""Real runs of `veldt` in a process of their own, and the address of their page."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

import veldt

ROOT = Path(veldt.__file__).parent.parent
PATIENCE_SECONDS = 60.0
SMALL = ("--env", "CartPole-v1", "--num-actors", "2", "--envs-per-actor", "4", "--quiet")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.1)


@contextmanager
def veldt_process(*arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """`veldt ...` until the block is left. What it prints can be read line by line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_CURRENT_TEST", None)  # NiceGUI would take the page for a test of itself
    process = subprocess.Popen(
        [sys.executable, "-m", "veldt", *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str], stream: IO[str] | None = None) -> str:
    """Address of the page, printed by a run to stderr and by `veldt watch` to stdout."""
    stream = stream or process.stderr
    line = stream.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, line
    return found[0]


def command_of(process: psutil.Process) -> list[str]:
    """Empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def page_process(process: subprocess.Popen[str]) -> psutil.Process:
    """The child that serves the page of a run; it is there soon after the address is."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "watch" in command_of(child)]

    until(found, "the page's process")
    return found()[0]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
