# SPDX-License-Identifier: Apache-2.0
"""Figures of the twenty fault tests: each test writes what it counted, not only that it passed.
And no waiting between tests."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

FIGURES = Path(__file__).parent.parent / "build" / "fault_figures.json"
Figure = Callable[[int, str, object], None]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """pytest-rerunfailures tells the first process of every test in two small messages. Unless
    they are sent at once, the second waits for the receipt of the first: 40 ms for each test."""
    told = getattr(config, "failures_db", None)
    if hasattr(config, "workerinput") and hasattr(told, "sock"):
        told.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.fixture
def figure() -> Figure:
    """`figure(test, name, value)` keeps a value under the number of its test. They are collected in
    build/fault_figures.json, or where VELDT_FAULT_FIGURES says."""
    path = Path(os.environ.get("VELDT_FAULT_FIGURES", FIGURES))

    def write(test: int, name: str, value: object) -> None:
        assert 1 <= test <= 20
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            known = json.loads(text) if text else {}
            known.setdefault(f"{test:02d}", {})[name] = value
            file.truncate(0)
            file.write(json.dumps(dict(sorted(known.items())), indent=2) + "\n")

    return write
