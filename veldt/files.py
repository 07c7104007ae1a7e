# SPDX-License-Identifier: Apache-2.0
"""Atomic writes of files, and locks on directories."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veldt.errors import ConfigurationError


def write_atomically(path: str | Path, data: bytes | str, durable: bool = False) -> None:
    """Replace the content of a file; a reader finds either the old or the new one, complete.

    With `durable` it is on disk on return, so that it survives a power cut."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renamed or new files of a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> int | None:
    """Lock a file until the returned descriptor is closed, or this process ends.

    None: another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def held_folder(folder: Path, user: str, option: str) -> Iterator[None]:
    """Create the folder if necessary and hold its lock.

    The error message names `user`, which may hold the lock, and the `option` for another folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock(folder / ".lock")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {folder} ({error.strerror}); choose another {option}"
        ) from error
    if descriptor is None:
        raise ConfigurationError(f"{folder} is in use by another {user}; choose another {option}")
    try:
        yield
    finally:
        os.close(descriptor)


def keep_conditions(path: Path, content: str, conditions: Mapping[str, Any]) -> None:
    """Write the conditions under which a folder's content is made.

    Raises ConfigurationError if others are stored there; `content` is named in the message."""
    wanted = json.loads(json.dumps(conditions))
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else wanted
    for name in {**wanted, **known}:
        if known.get(name) != wanted.get(name):
            raise ConfigurationError(
                f"{path.parent} holds {content} with {name} {known.get(name)}, not"
                f" {wanted.get(name)}; choose another --out"
            )
    write_atomically(path, json.dumps(wanted, indent=2) + "\n", durable=True)
