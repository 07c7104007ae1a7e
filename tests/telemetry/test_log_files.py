# SPDX-License-Identifier: Apache-2.0
"""Log files are whole after crashes and full disks."""

import os
from pathlib import Path

import pytest

from veldt.telemetry.log_files import (
    METRICS_FILE,
    JsonLines,
    JsonLog,
    TensorBoardLog,
    metric_rows,
    tag,
)


def events_of(directory: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every scalar, read by TensorBoard's own reader, which checks CRCs."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in sorted(directory.iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            found += [(event.step, item.tag, item.simple_value) for item in event.summary.value]
    return found


@pytest.mark.parametrize("torn", ["", '{"env_steps": 9', "x" * 10_000])
@pytest.mark.parametrize("lines_before", [0, 2])
def test_a_line_torn_by_a_crash_is_removed(tmp_path, torn, lines_before):
    path = tmp_path / METRICS_FILE
    path.write_text('{"a": 1}\n' * lines_before + torn)
    JsonLog(path).write({"a": 2})
    assert [line["a"] for line in metric_rows(tmp_path)] == [1] * lines_before + [2]
    assert path.read_text().endswith("}\n")


def test_damaged_lines_are_skipped(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"a": \xff\n[1]\n{"a": 2}\n{"a"')
    reader = JsonLines(path)
    assert reader.new_lines() == ([{"a": 1}, {"a": 2}], True)
    with open(path, "ab") as file:
        file.write(b": 3}\n")
    assert reader.new_lines() == ([{"a": 3}], False)


def test_a_full_disk_leaves_whole_records(tmp_path, monkeypatch):
    log, scalars = JsonLog(tmp_path / METRICS_FILE), TensorBoardLog(tmp_path / "tensorboard")
    whole_pwrite = os.pwrite

    def half_pwrite(file: int, record: bytes, offset: int) -> int:
        return whole_pwrite(file, record[: len(record) // 2], offset)

    for step in (1, 2, 3):
        with monkeypatch.context() as patch:
            if step == 2:
                patch.setattr(os, "pwrite", half_pwrite)
                with pytest.raises(OSError, match="bytes fit"):
                    log.write({"a": step})
                with pytest.raises(OSError, match="bytes fit"):
                    scalars.scalars(step, {"a": step})
            else:
                log.write({"a": step})
                scalars.scalars(step, {"a": step})
    assert [line["a"] for line in metric_rows(tmp_path)] == [1, 3]
    assert events_of(tmp_path / "tensorboard") == [(1, "a", 1.0), (3, "a", 3.0)]


def test_tags_are_grouped_by_what_they_tell_not_by_how_they_are_counted():
    names = {"counter/loss.value": "loss/value", "counter/replay.size.0": "replay/size.0"}
    names |= {
        "counter/trained_env_steps": "trained_env_steps",
        "return/mean_100": "return/mean_100",
    }
    assert {name: tag(name) for name in names} == names
