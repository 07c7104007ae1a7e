# SPDX-License-Identifier: Apache-2.0
"""Metrics files are whole after crashes and full disks, and tensorflow is never looked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veldt.telemetry.log_files import MetricsWriter


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def events_of(run_dir: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every scalar, read by TensorBoard's own reader, which checks CRCs."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in sorted((run_dir / "tensorboard").iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            found += [(event.step, item.tag, item.simple_value) for item in event.summary.value]
    return found


def test_records_reach_both_files_at_once(tmp_path: Path) -> None:
    alarms: list[str] = []
    writer = MetricsWriter(tmp_path, alarms.append)
    writer.write(64, {"return/mean_100": float("nan"), "lag/max": np.int64(3), "note": "warm"})
    writer.write(128, {"return/mean_100": 1.5, "lag/max": 4})
    assert [line["env_steps"] for line in lines_of(tmp_path)] == [64, 128]
    assert lines_of(tmp_path)[0] | {"time": 0} == {
        "time": 0, "env_steps": 64, "return/mean_100": None, "lag/max": 3, "note": "warm"
    }  # fmt: skip
    events = events_of(tmp_path)
    assert [(step, tag) for step, tag, _ in events] == [
        (64, "return/mean_100"), (64, "lag/max"), (128, "return/mean_100"), (128, "lag/max")
    ]  # fmt: skip
    assert [value for _, _, value in events[1:]] == [3.0, 1.5, 4.0]
    assert alarms == []


def test_a_line_torn_by_a_crash_is_cut_and_writing_goes_on(tmp_path: Path) -> None:
    for torn in ("", '{"env_steps": 9', "x" * 10_000):
        MetricsWriter(tmp_path).write(1, {"a": 1})
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(torn)
    writer = MetricsWriter(tmp_path)
    writer.write(2, {"a": 2})
    writer.close()
    assert [line["a"] for line in lines_of(tmp_path)] == [1, 1, 1, 2]


def test_a_file_of_one_torn_line_becomes_whole(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("x" * 9000)
    MetricsWriter(tmp_path).write(1, {"a": 1})
    assert len(lines_of(tmp_path)) == 1


def test_a_full_disk_alarms_once_and_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms: list[str] = []
    writer = MetricsWriter(tmp_path, alarms.append)
    writer.write(1, {"a": 1})
    whole_pwrite = os.pwrite

    def half_pwrite(file: int, record: bytes, offset: int) -> int:
        return whole_pwrite(file, record[: len(record) // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_pwrite)
        writer.write(2, {"a": 2})
        writer.write(3, {"a": 3})
    assert [line["a"] for line in lines_of(tmp_path)] == [1]
    writer.write(4, {"a": 4})
    assert [line["a"] for line in lines_of(tmp_path)] == [1, 4]
    assert [(step, value) for step, _, value in events_of(tmp_path)] == [(1, 1.0), (4, 4.0)]
    assert len(alarms) == 2
    assert alarms[0].startswith("metrics.jsonl failed, training continues")
    assert alarms[1].startswith("TensorBoard events failed, training continues")


def test_a_run_directory_that_cannot_be_made_alarms_and_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the directory should be")
    alarms: list[str] = []
    writer = MetricsWriter(tmp_path / "run", alarms.append)
    for step in range(3):
        writer.write(step, {"a": 1})
    writer.close()
    assert len(alarms) == 2


PROGRAM = """
import importlib.abc, sys

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "torch"):
            print("looked for", name)

sys.meta_path.insert(0, Watch())
from veldt.telemetry.log_files import MetricsWriter
assert not any(name.partition(".")[0] == "tensorboard" for name in sys.modules)
MetricsWriter(sys.argv[1]).write(1, {"a": 1.0})
assert "tensorboard" in sys.modules
assert "tensorboard.summary" not in sys.modules  # which imports what writes to clouds: a second
"""


def test_tensorboard_is_imported_late_and_tensorflow_never(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert events_of(tmp_path) == [(1, "a", 1.0)]
