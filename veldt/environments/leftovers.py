# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of multiprocessing that nobody removed, because their owner was killed.

They do not say whose they are. Ours do: a file in them names the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_MARK = "veldt-"


def claim(folder: Path) -> None:
    """Say that a temporary folder is this process's."""
    with suppress(OSError):
        (folder / f"{_MARK}{os.getpid()}").touch()


def remove_leftovers() -> None:
    """Folders of dead processes; whatever is not marked as ours is left alone."""
    for folder in Path(tempfile.gettempdir()).glob("pymp-*"):
        with suppress(OSError):
            owners = [path.name.removeprefix(_MARK) for path in folder.glob(f"{_MARK}*")]
            is_ours = bool(owners) and folder.stat().st_uid == os.getuid()
            if is_ours and not any(Path("/proc", owner).exists() for owner in owners):
                shutil.rmtree(folder, ignore_errors=True)
