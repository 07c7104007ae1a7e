# SPDX-License-Identifier: Apache-2.0
"""Files that grow while a run trains: JSON lines and TensorBoard events, whole records only.

TensorBoard's own writers are not used because they look for tensorflow, import clients of cloud
stores, which takes half a second, and write from a thread.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from veldt.telemetry.result import dumps

METRICS_FILE = "metrics.jsonl"
LogFn = Callable[[str], None]


def log_to_stderr(text: str) -> None:
    print(f"veldt: {text}", file=sys.stderr, flush=True)


def wants_events(trackers: Collection[str]) -> bool:
    """Whether event files are written: asked for, or `auto` and TensorBoard is installed."""
    is_installed = importlib.util.find_spec("tensorboard") is not None
    return "tensorboard" in trackers or ("auto" in trackers and is_installed)


class Guard:
    """Calls functions that may fail; the first failure of each sort is logged."""

    def __init__(self, log: LogFn = log_to_stderr) -> None:
        self._log = log
        self._silenced: set[str] = set()

    def __call__(self, what: str, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            if what not in self._silenced:
                self._silenced.add(what)
                self._log(f"{what} failed, training continues: {type(error).__name__}: {error}")


class MetricsWriter:
    """Appends one record per call to RUN_DIR/metrics.jsonl and RUN_DIR/tensorboard/.

    A write that fails is logged once and tried again with the next record. TensorBoard's messages
    are imported by the first `write`, so that they do not delay the start of a run."""

    def __init__(
        self, run_dir: str | Path, log: LogFn = log_to_stderr, tensorboard: bool = True
    ) -> None:
        self._run_dir, self._has_events = Path(run_dir), tensorboard
        self._guarded = Guard(log)
        self._lines: JsonLog | None = None
        self._events: _EventLog | None = None

    def write(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        """Record `metrics` at `env_steps`; TensorBoard gets the numbers among them."""
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
            self._lines = JsonLog(self._run_dir / METRICS_FILE)
        self._lines.write({"time": time.time(), "env_steps": env_steps, **metrics})

    def _write_event(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
        if self._events is None:
            self._events = _EventLog(self._run_dir / "tensorboard")
        self._events.scalars(env_steps, metrics)


class AppendLog:
    """A file to which only whole records are appended."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = os.lseek(self._file, 0, os.SEEK_END)

    def append(self, record: bytes) -> None:
        """Append a record; a part of one that did not fit is removed."""
        written = os.pwrite(self._file, record, self._end)
        if written != len(record):
            os.ftruncate(self._file, self._end)
            raise OSError(f"only {written} of {len(record)} bytes fit")
        self._end += written

    def close(self) -> None:
        os.close(self._file)


class JsonLog(AppendLog):
    """A file of JSON lines; a line that a crash left incomplete is removed on opening."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        while self._end:
            start = max(0, self._end - 4096)
            newline = os.pread(self._file, self._end - start, start).rfind(b"\n")
            self._end = start + newline + 1
            if newline >= 0:
                break
        os.ftruncate(self._file, self._end)

    def write(self, record: dict[str, Any]) -> None:
        self.append(dumps(record).encode() + b"\n")


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; empty without that file."""
    return JsonLines(run_dir / METRICS_FILE).new_lines()[0]


class JsonLines:
    """Reads a growing file of JSON lines from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        self._inode: int | None = None

    def new_lines(self) -> tuple[list[dict[str, Any]], bool]:
        """Whole lines since the last call, and whether the file was replaced since."""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                is_new = found.st_ino != self._inode or found.st_size < self._end
                if is_new:
                    self._end, self._inode = 0, found.st_ino
                file.seek(self._end)
                data = file.read()
        except OSError:
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        return [json.loads(line) for line in whole.splitlines()], is_new


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
        data = self._event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        self._log.append(length + _checksum(length) + data + _checksum(data))

    def close(self) -> None:
        self._log.close()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as the format of event files requires."""
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
