# SPDX-License-Identifier: Apache-2.0
"""A growing file of JSON lines, read while another process writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class LineFile:
    """A file of JSON lines that grows, read from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        self._inode: int | None = None

    def new_lines(self) -> tuple[list[dict[str, Any]], bool]:
        """Whole lines since the last call, and whether it is another file than before."""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                anew = found.st_ino != self._inode or found.st_size < self._end
                if anew:
                    self._end, self._inode = 0, found.st_ino
                file.seek(self._end)
                data = file.read()
        except OSError:
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        return [json.loads(line) for line in whole.splitlines()], anew
