# SPDX-License-Identifier: Apache-2.0
"""Files that no reader, and no crash, ever finds half written, and locks on directories."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
