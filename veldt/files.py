# SPDX-License-Identifier: Apache-2.0
"""Files that no reader, and no crash, ever finds half written, and locks on directories."""

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
    """Put a new content in the place of the old one: a reader finds either whole. Text is UTF-8.

    `durable`: on return it is on disk, so that it survives a power cut."""
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
    """Make what was renamed or created in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> int | None:
    """Hold a lock file until the descriptor is closed, by the kernel if this process dies. None:
    another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def held_folder(folder: Path, user: str, option: str) -> Iterator[None]:
    """Make the folder if need be, and let nobody else work in it meanwhile. `user` is what would be
    in the way and `option` names another folder."""
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
    for name in dict.fromkeys([*wanted, *known]):
        if known.get(name) != wanted.get(name):
            raise ConfigurationError(
                f"{path.parent} holds {content} with {name} {known.get(name)}, not"
                f" {wanted.get(name)}; choose another --out"
            )
    write_atomically(path, json.dumps(wanted, indent=2) + "\n", durable=True)
