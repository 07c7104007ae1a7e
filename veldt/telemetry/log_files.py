# SPDX-License-Identifier: Apache-2.0
"""Files that grow during a run: JSON lines and TensorBoard events, whole records only.

TensorBoard's own writers are not used because they search for tensorflow, import clients of cloud
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from veldt.telemetry.result import dumps

METRICS_FILE = "metrics.jsonl"
LogFn = Callable[[str], None]


def log_to_stderr(text: str) -> None:
    print(f"veldt: {text}", file=sys.stderr, flush=True)


def wants_events(trackers: Collection[str]) -> bool:
    """Whether to write event files: on request, or with `auto` if TensorBoard is installed."""
    is_installed = importlib.util.find_spec("tensorboard") is not None
    return "tensorboard" in trackers or ("auto" in trackers and is_installed)


class Guard:
    """Calls functions that may fail; logs the first failure of each kind."""

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
    """A file of JSON lines; opening it removes an incomplete last line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._end = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, self._end)

    def write(self, record: dict[str, Any]) -> None:
        self.append(dumps(record).encode() + b"\n")


class JsonLines:
    """Reads a growing file of JSON lines from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        self._inode: int | None = None

    def new_lines(self) -> tuple[list[dict[str, Any]], bool]:
        """Whole lines since the last call, and whether the file was replaced since.

        Lines that are damaged are skipped."""
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
        lines = map(json_object, whole.splitlines())
        return [line for line in lines if line is not None], is_new


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The object of a JSON text; None if that is damaged, another value, or no valid Unicode."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # refuses half of a surrogate pair
        return content if isinstance(content, dict) else None
    return None


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; empty without that file."""
    return JsonLines(run_dir / METRICS_FILE).new_lines()[0]


EVALUATION, EVALUATION_ENV_STEPS = "evaluation/return", "evaluation/return_env_steps"
"""Mean return of fresh episodes, and the age of the weights that played them."""


def evaluations_in(run_dir: Path, until: int) -> list[dict[str, float]]:
    """The evaluations in metrics.jsonl of weights that are at most `until` env steps old."""
    return [
        {"env_steps": row[EVALUATION_ENV_STEPS], "return": row[EVALUATION]}
        for row in metric_rows(run_dir)
        if EVALUATION in row and row[EVALUATION_ENV_STEPS] <= until
    ]


def tag(metric: str) -> str:
    """The name of a metric in trackers: `loss/value` for `counter/loss.value`."""
    name = metric.removeprefix("counter/")
    return metric if name == metric else name.replace(".", "/", 1)


class TensorBoardLog:
    """A TensorBoard event file of scalars. Its messages are imported late to start runs faster."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        name = f"events.out.tfevents.{time.time_ns():019d}.{socket.gethostname()}.{os.getpid()}"
        self._log = AppendLog(directory / name)
        self._append(file_version="brain.Event:2")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [
            self._summary.Value(tag=tag(name), simple_value=float(value))
            for name, value in metrics.items()
        ]
        self._append(step=step, summary=self._summary(value=values))

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
