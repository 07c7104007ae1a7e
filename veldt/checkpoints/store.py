# SPDX-License-Identifier: Apache-2.0
"""Complete, atomic checkpoints without pickle, and the rule for which one to resume from.

A checkpoint is a directory that appears by one rename, once every file and a manifest of sizes and
hashes are on disk. Damaged checkpoints are skipped and reported by name. Where all are damaged, an
error is raised, because starting anew would hide the loss.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veldt.checkpoints.format import (
    DAMAGE,
    CheckpointWriter,
    checked_arrays,
    json_bytes,
    load_part,
    read_manifest,
    verify,
)
from veldt.files import sync_directory

CHUNK_BYTES = 64 * 2**20
_MAX_STEP = 10**12
_NAME = re.compile(r"checkpoint-(\d{12})(?:\.(\d{1,6}))?", re.ASCII)
_TEMPORARY = ".tmp-"

_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. Training may continue after a failed save."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint; all its files were verified when it was opened."""

    path: Path
    step: int
    meta: dict[str, Any]
    parts: tuple[str, ...]

    def load(self, part: str) -> dict[str, np.ndarray]:
        """Writable arrays of one part, in the order they were saved; hashes are checked again."""
        return read_part(self.path, part)


def read_part(path: Path, part: str) -> dict[str, np.ndarray]:
    """One part of the checkpoint at `path`, verified; the other parts are not read."""
    try:
        manifest = read_manifest(path)
        if part not in manifest["parts"]:
            known = ", ".join(manifest["parts"]) or "none"
            raise CheckpointError(f"{path} has no part '{part}'; its parts are: {known}")
        return load_part(path, manifest, part)
    except DAMAGE as error:
        raise CheckpointError(f"{path}: {_text(error)}") from error


class CheckpointStore:
    """The newest `keep` checkpoints of one run, whose directory the caller has locked.

    Arrays of more than `chunk_bytes` are split into files of that size. No two checkpoints share a
    file, so one bad sector cannot damage both.
    """

    def __init__(self, directory: Path, keep: int = 2, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.directory = Path(directory)
        self.keep = keep
        self.problems: list[str] = []
        """Damaged checkpoints of the last `newest()`, and old ones that could not be deleted."""
        self._chunk_bytes = chunk_bytes
        self._damaged: set[str] = set()

    def save(
        self, step: int, parts: Mapping[str, Mapping[str, np.ndarray]], meta: Mapping[str, Any]
    ) -> Path:
        """Write everything or nothing, and return once it is durable. After a CheckpointError the
        earlier checkpoints are untouched."""
        if not 0 <= step < _MAX_STEP:
            raise CheckpointError(f"step {step} is not between 0 and {_MAX_STEP - 1}")
        try:
            encoded_meta = json_bytes(dict(meta))
            prepared = {part: checked_arrays(part, arrays) for part, arrays in parts.items()}
            os.makedirs(self.directory, exist_ok=True)
            sync_directory(self.directory.absolute().parent)
            path = self._write(step, prepared, encoded_meta)
            sync_directory(self.directory)
            self._damaged.discard(path.name)
            self._retire()
        except (*DAMAGE, MemoryError) as error:
            raise CheckpointError(
                f"the checkpoint of step {step} was not saved: {_text(error)}"
            ) from error
        return path

    def newest(self) -> Checkpoint | None:
        """The newest valid checkpoint; None only where there never was one."""
        while True:
            self.problems = []
            names = ordered_names(self.directory)
            for name in reversed(names):
                try:
                    return _opened(self.directory / name)
                except CheckpointError as error:
                    self._note(name, str(error))
                    self._damaged.add(name)
            # A run that is still writing may have deleted what was being read: try again.
            if names == ordered_names(self.directory):
                break
        candidates = [n for n in _entries(self.directory) if n.startswith("checkpoint-")]
        if not candidates:
            return None
        for name in set(candidates) - set(names):
            self._note(name, "not a name that this store gives")
        raise CheckpointError(
            f"no checkpoint in {self.directory} is valid, and starting afresh would hide that; "
            "restore one from a copy or choose another directory. " + "; ".join(self.problems)
        )

    def steps(self) -> list[int]:
        """Steps of all checkpoints, valid or not, oldest first."""
        return sorted({step_of(name) for name in ordered_names(self.directory)})

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of this step; the newest one if it was saved again."""
        names = [name for name in ordered_names(self.directory) if step_of(name) == step]
        if not names:
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}")
        return _opened(self.directory / names[-1])

    def _note(self, name: str, problem: str) -> None:
        self.problems.append(f"{name}: {problem}")
        _log.warning("checkpoint %s", self.problems[-1])

    def _write(
        self, step: int, parts: dict[str, dict[str, np.ndarray]], encoded_meta: bytes
    ) -> Path:
        for stale in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(stale, ignore_errors=True)
        name = self._new_name(step)
        temporary = self.directory / (_TEMPORARY + name)
        try:
            os.mkdir(temporary)
            writer = CheckpointWriter(temporary, self._chunk_bytes)
            writer.write(step, parts, encoded_meta)
            os.rename(temporary, self.directory / name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return self.directory / name

    def _new_name(self, step: int) -> str:
        revision = ""
        for name in ordered_names(self.directory):
            found, number = _order(name)
            if found == step:
                revision = f".{number + 1}"
            elif found > step and not self._is_damaged(name):
                raise CheckpointError(
                    f"{self.directory} already holds {name}, which is newer than step {step}; "
                    "resume from it or choose another directory"
                )
        return f"checkpoint-{step:012d}{revision}"

    def _is_damaged(self, name: str) -> bool:
        if name not in self._damaged:
            try:
                _opened(self.directory / name)
            except CheckpointError:
                self._damaged.add(name)
        return name in self._damaged

    def _good_names(self) -> list[str]:
        return [name for name in ordered_names(self.directory) if name not in self._damaged]

    def _retire(self) -> None:
        """Delete what is older than the kept ones, after a rename, so that none is incomplete."""
        kept = self._good_names()[-self.keep :]
        for name in ordered_names(self.directory):
            if kept and _order(name) < _order(kept[0]):
                doomed = self.directory / (_TEMPORARY + name)
                try:
                    os.rename(self.directory / name, doomed)
                    shutil.rmtree(doomed)
                except OSError as error:
                    self._note(name, f"could not be deleted: {_text(error)}")


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list {directory}: {_text(error)}") from error


def ordered_names(directory: Path) -> list[str]:
    """Checkpoints in a directory, valid or not, by step and then by revision."""
    return sorted(filter(_NAME.fullmatch, _entries(directory)), key=_order)


def step_of(name: str) -> int:
    """The step in the name of a checkpoint."""
    return _order(name)[0]


def _opened(path: Path) -> Checkpoint:
    try:
        manifest, meta = verify(path)
        if manifest["step"] != _order(path.name)[0]:
            raise ValueError(f"it was saved as step {manifest['step']}")
    except DAMAGE as error:
        raise CheckpointError(_text(error)) from error
    return Checkpoint(path, manifest["step"], meta, tuple(manifest["parts"]))


def _order(name: str) -> tuple[int, int]:
    step, revision = _NAME.fullmatch(name).groups(default="0")  # type: ignore[union-attr]
    return int(step), int(revision)


def _text(error: BaseException) -> str:
    kind = "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:500]
