# SPDX-License-Identifier: Apache-2.0
"""In which order tests run on several workers."""

import os
import socket
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WAITING = ("backends", "dashboard", "faults", "wire")
"""Folders of tests that wait for processes more than they compute."""
LONG = (
    "learning",
    "test_course.py",
    "test_layout.py",
    "test_notebook.py",
    "test_site.py",
    "trackers",
)


@pytest.fixture(scope="session")
def short_run(tmp_path_factory):
    """A run of impala on CartPole with a checkpoint; who changes it makes a copy."""
    import veldt

    path = tmp_path_factory.mktemp("runs") / "run"
    options = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}
    veldt.train("impala", "CartPole-v1", total_env_steps=300, run_dir=str(path), **options)
    return path


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """pytest-rerunfailures tells the first process of every test in two small messages. Unless
    they are sent at once, the second waits for the receipt of the first: 40 ms for each test."""
    told = getattr(config, "failures_db", None)
    if hasattr(config, "workerinput") and hasattr(told, "sock"):
        told.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: while one waits for what it has started, the others work."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait lie between files that compute. At the end there are only short ones, so that
    no worker is left alone with a long one."""
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if _belongs(file, WAITING)]
    computing = [file for file in files if file not in waiting]
    computing.sort(key=lambda file: not _belongs(file, LONG))
    places = {file: 0.7 * place / len(waiting) for place, file in enumerate(waiting)}
    places |= {file: place / len(computing) for place, file in enumerate(computing)}
    items.sort(key=lambda item: places[item.path])


def _belongs(file: Path, names: tuple[str, ...]) -> bool:
    return file.is_relative_to(HERE) and file.relative_to(HERE).parts[0] in names
