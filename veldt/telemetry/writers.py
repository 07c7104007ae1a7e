# SPDX-License-Identifier: Apache-2.0
"""Metrics on disk: metrics.jsonl and TensorBoard events, whole records only.

A write that fails is reported once and tried again with the next record; it never stops training.
TensorBoard's own writers are not used: they look for tensorflow, import what can write to clouds,
which takes a second, and write from a thread.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from veldt.telemetry.result import dumps

METRICS_FILE = "metrics.jsonl"


def alarm_to_stderr(text: str) -> None:
    """The default alarm."""
    print(f"veldt: {text}", file=sys.stderr, flush=True)


class Guard:
    """Calls what may fail without harm; `alarm` hears of the first failure of each sort."""

    def __init__(self, alarm: Callable[[str], None] = alarm_to_stderr) -> None:
        self._alarm = alarm
        self._silenced: set[str] = set()

    def __call__(self, what: str, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            if what not in self._silenced:
                self._silenced.add(what)
                self._alarm(f"{what} failed, training goes on: {type(error).__name__}: {error}")


class MetricsWriter:
    """Appends one record per call to RUN_DIR/metrics.jsonl and RUN_DIR/tensorboard/.

    `alarm` receives one line the first time a file cannot be written. The TensorBoard package is
    imported by the first `write`, so that it costs the start of a run nothing."""

    def __init__(
        self,
        run_dir: str | Path,
        alarm: Callable[[str], None] = alarm_to_stderr,
        tensorboard: bool = True,
    ) -> None:
        self._run_dir, self._has_events = Path(run_dir), tensorboard
        self._guarded = Guard(alarm)
        self._lines: AppendLog | None = None
        self._events: _EventLog | None = None

    def write(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        """Record `metrics` at `env_steps`. What is no number goes to the JSON lines only."""
        self._guarded(METRICS_FILE, self._write_line, env_steps, metrics)
        if self._has_events:
            self._guarded("TensorBoard events", self._write_event, env_steps, metrics)

    def close(self) -> None:
        """Close the files; a later `write` opens them again."""
        for log in (self._lines, self._events):
            if log is not None:
                self._guarded("closing of metrics", log.close)
        self._lines = self._events = None

    def _write_line(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        if self._lines is None:
            self._lines = AppendLog(self._run_dir / METRICS_FILE)
            self._lines.cut_torn_line()
        record = {"time": time.time(), "env_steps": env_steps, **metrics}
        self._lines.write(dumps(record).encode() + b"\n")

    def _write_event(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        if self._events is None:
            self._events = _EventLog(self._run_dir / "tensorboard")
        self._events.scalars(env_steps, metrics)


class AppendLog:
    """A file that only ever ends after a whole record, as far as the disk allows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = os.lseek(self._file, 0, os.SEEK_END)

    def cut_torn_line(self) -> None:
        """Drop what a crash left after the last newline."""
        while self._end:
            start = max(0, self._end - 4096)
            newline = os.pread(self._file, self._end - start, start).rfind(b"\n")
            self._end = start + newline + 1
            if newline >= 0:
                break
        os.ftruncate(self._file, self._end)

    def write(self, record: bytes) -> None:
        """Append the record in one call; a part of one that did not fit is cut off again."""
        written = os.pwrite(self._file, record, self._end)
        if written != len(record):
            os.ftruncate(self._file, self._end)
            raise OSError(f"only {written} of {len(record)} bytes fit")
        self._end += written

    def close(self) -> None:
        os.close(self._file)


class _EventLog:
    """A TensorBoard event file of scalars."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        name = f"events.out.tfevents.{time.time_ns():019d}.{socket.gethostname()}.{os.getpid()}"
        self._log = AppendLog(directory / name)
        self._append(file_version="brain.Event:2")

    def scalars(self, step: int, metrics: Mapping[str, Any]) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=float(value))
            for name, value in metrics.items()
            if isinstance(value, int | float) or getattr(value, "shape", None) == ()
        ]
        self._append(step=int(step), summary=self._summary(value=values))

    def _append(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        self._log.write(_record(event.SerializeToString()))

    def close(self) -> None:
        self._log.close()


def _record(data: bytes) -> bytes:
    """Length and content as event files have them, each with its check."""
    length = struct.pack("<Q", len(data))
    return length + _check(length) + data + _check(data)


def _check(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as event files want it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_of(byte) for byte in range(256)]
