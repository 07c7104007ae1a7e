# SPDX-License-Identifier: Apache-2.0
"""Complete, atomic checkpoints without pickle, and the rule for which one to resume from.

A checkpoint is a directory that appears by one rename, once every file and a manifest of sizes and
hashes are on disk. What is damaged is skipped by name; nothing ever starts afresh quietly.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from veldt.checkpoints.format import (
    DAMAGE,
    MANIFEST,
    CheckpointWriter,
    checked_arrays,
    json_bytes,
    load_part,
    read_manifest,
    verify,
)
from veldt.files import lock, sync_directory

CHUNK_BYTES = 64 * 2**20
_MAX_STEP = 10**12
_NAME = re.compile(r"checkpoint-(\d{12})(?:\.(\d{1,6}))?", re.ASCII)
_TEMPORARY = ".tmp-"

_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be read. Training may go on after a save."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint whose files were all verified when it was opened."""

    path: Path
    step: int
    meta: dict[str, Any]
    manifest: dict[str, Any] = field(repr=False)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.manifest["parts"])

    def load(self, part: str) -> dict[str, np.ndarray]:
        """Writable arrays of one part, in the order they were saved; hashes are checked again."""
        if part not in self.manifest["parts"]:
            known = ", ".join(self.parts) or "none"
            raise CheckpointError(f"{self.path} has no part '{part}'; its parts are: {known}")
        try:
            return load_part(self.path, self.manifest, part)
        except DAMAGE as error:
            raise CheckpointError(f"{self.path}: {_text(error)}") from error


def read_part(path: Path, part: str) -> dict[str, np.ndarray]:
    """One part of the checkpoint at `path`, verified; the other parts are not looked at."""
    try:
        found = os.stat(path / MANIFEST)
        manifest = _manifest(path, (found.st_ino, found.st_mtime_ns, found.st_size))
        return load_part(path, manifest, part)
    except KeyError as error:
        raise CheckpointError(f"{path} has no part '{part}'") from error
    except DAMAGE as error:
        raise CheckpointError(f"{path}: {_text(error)}") from error


@lru_cache(maxsize=2)
def _manifest(path: Path, stamp: tuple[int, int, int]) -> dict[str, Any]:
    """Proven once while its file stays as it is: it names every part, and every part asks it."""
    return read_manifest(path)


class CheckpointStore:
    """The checkpoints of one run, oldest deleted beyond `keep`.

    Arrays of more than `chunk_bytes` are cut into files of that size, and a file that an older
    checkpoint already has is hard-linked instead of written. Links never reach into the newest
    checkpoint, so the last two share nothing and one bad sector cannot take both.
    """

    def __init__(self, directory: Path, keep: int = 2, chunk_bytes: int = CHUNK_BYTES) -> None:
        if keep < 1 or chunk_bytes < 1:
            raise ValueError(f"keep and chunk_bytes must be positive, not {keep} and {chunk_bytes}")
        self.directory = Path(directory)
        self.keep = keep
        self.problems: list[str] = []
        """What the last `newest()` found wrong, and old checkpoints that could not be deleted."""
        self._chunk_bytes = chunk_bytes
        self._damaged: set[str] = set()

    def save(
        self, step: int, parts: Mapping[str, Mapping[str, np.ndarray]], meta: Mapping[str, Any]
    ) -> Path:
        """Write everything or nothing; blocks until it is durable. On CheckpointError the earlier
        checkpoints are untouched and the run can go on."""
        if not 0 <= step < _MAX_STEP:
            raise CheckpointError(f"step {step} is not between 0 and {_MAX_STEP - 1}")
        try:
            encoded_meta = json_bytes(dict(meta))
            prepared = {part: checked_arrays(part, arrays) for part, arrays in parts.items()}
            with _locked(self.directory):
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
            names = self._names()
            for name in reversed(names):
                try:
                    return _opened(self.directory / name)
                except CheckpointError as error:
                    self._note(name, str(error))
                    self._damaged.add(name)
            # A run that is still writing may have retired what was being read: look again.
            if names == self._names():
                break
        candidates = [name for name in self._entries() if name.startswith("checkpoint-")]
        if not candidates:
            return None
        for stranger in set(candidates) - set(names):
            self._note(stranger, "not a name that this store gives")
        raise CheckpointError(
            f"no checkpoint in {self.directory} is valid, and starting afresh would hide that; "
            "restore one from a copy or choose another directory. " + "; ".join(self.problems)
        )

    def steps(self) -> list[int]:
        """Of all checkpoints that are there, valid or not, oldest first."""
        return sorted({_order(name)[0] for name in self._names()})

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of this step; the newest one where it was saved again."""
        names = [name for name in self._names() if _order(name)[0] == step]
        if not names:
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}")
        return _opened(self.directory / names[-1])

    def _note(self, name: str, problem: str) -> None:
        self.problems.append(f"{name}: {problem}")
        _log.warning("checkpoint %s", self.problems[-1])

    def _entries(self) -> list[str]:
        try:
            return sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot list {self.directory}: {_text(error)}") from error

    def _names(self) -> list[str]:
        """Checkpoints by step, then by revision (the same step saved again)."""
        return sorted(filter(_NAME.fullmatch, self._entries()), key=_order)

    def _write(
        self, step: int, parts: dict[str, dict[str, np.ndarray]], encoded_meta: bytes
    ) -> Path:
        for stale in self._entries():
            if stale.startswith(_TEMPORARY):
                shutil.rmtree(self.directory / stale, ignore_errors=True)
        name = self._new_name(step)
        temporary = self.directory / (_TEMPORARY + name)
        try:
            os.mkdir(temporary)
            writer = CheckpointWriter(temporary, self._reusable(), self._chunk_bytes)
            writer.write(step, parts, encoded_meta)
            os.rename(temporary, self.directory / name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return self.directory / name

    def _new_name(self, step: int) -> str:
        revision = -1
        for name in self._names():
            if _order(name)[0] == step:
                revision = _order(name)[1]
            elif _order(name)[0] > step and not self._is_damaged(name):
                raise CheckpointError(
                    f"{self.directory} already holds {name}, which is newer than step {step}; "
                    "resume from it or choose another directory"
                )
        return f"checkpoint-{step:012d}" + (f".{revision + 1}" if revision >= 0 else "")

    def _is_damaged(self, name: str) -> bool:
        if name not in self._damaged:
            try:
                _opened(self.directory / name)
            except CheckpointError:
                self._damaged.add(name)
        return name in self._damaged

    def _reusable(self) -> dict[str, Path]:
        """Files by hash, of every good checkpoint but the newest."""
        found = {}
        for name in [name for name in self._names() if name not in self._damaged][:-1]:
            with contextlib.suppress(*DAMAGE):
                path = self.directory / name
                for file, entry in read_manifest(path)["files"].items():
                    found[entry["sha256"]] = path / file
        return found

    def _retire(self) -> None:
        """Delete what is older than the kept ones; renamed first, so that none is half there."""
        good = [name for name in self._names() if name not in self._damaged]
        if not good:  # somebody else has already taken the directory away
            return
        oldest_kept = _order(good[-self.keep :][0])
        for name in self._names():
            if _order(name) < oldest_kept:
                doomed = self.directory / (_TEMPORARY + name)
                try:
                    os.rename(self.directory / name, doomed)
                    shutil.rmtree(doomed)
                except OSError as error:
                    self._note(name, f"could not be deleted: {_text(error)}")


def ordered_names(directory: Path) -> list[str]:
    """Of the checkpoints in a directory, valid or not, oldest first."""
    return CheckpointStore(directory)._names()


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
    return Checkpoint(path, manifest["step"], meta, manifest)


def _order(name: str) -> tuple[int, int]:
    step, revision = _NAME.fullmatch(name).groups(default="0")  # type: ignore[union-attr]
    return int(step), int(revision)


def _text(error: BaseException) -> str:
    kind = "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:500]


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two runs in one directory would delete each other's unfinished saves; the kernel frees the
    lock of a process that dies."""
    os.makedirs(directory, exist_ok=True)
    sync_directory(directory.absolute().parent)
    held = lock(directory / ".lock")
    if held is None:
        raise CheckpointError(f"another process is saving to {directory}")
    try:
        yield
    finally:
        os.close(held)
