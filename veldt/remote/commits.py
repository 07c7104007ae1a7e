# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints of a store are whole: those with a marker, which is written last.

    STORE/checkpoints/checkpoint-000000001000-4f0c.../...     the files
    STORE/checkpoints/checkpoint-000000001000-4f0c....committed

A folder is named after the hash of its manifest, so that nobody who comes late, from a process that
was believed dead, can write into a checkpoint that others rely on. It holds config.json of its time
as well. A marker says all by being there, so that it cannot be half written.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from veldt.checkpoints.format import MANIFEST
from veldt.checkpoints.store import step_of

MARKER = ".committed"
_MARKER_NAME = re.compile(r"(checkpoint-(\d{12})(?:\.(\d{1,6}))?)-([0-9a-f]{16})\.committed")


@dataclass(frozen=True)
class Commit:
    """One checkpoint that a store holds whole."""

    folder: str
    """"checkpoints" or "best"."""
    name: str
    """As on disk."""
    digest: str
    """Of its manifest."""

    @property
    def prefix(self) -> str:
        return f"{self.folder}/{self.name}-{self.digest}"

    @property
    def marker(self) -> str:
        return self.prefix + MARKER

    @property
    def step(self) -> int:
        return step_of(self.name)


def digest_of(checkpoint: Path) -> str:
    """Of the manifest of a checkpoint on this machine."""
    return hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()[:16]


def commits_in(listing: dict[str, int], folder: str) -> list[Commit]:
    """Of one folder, oldest first."""
    found = []
    for path in listing:
        parent, _, name = path.rpartition("/")
        match = _MARKER_NAME.fullmatch(name)
        if match and parent == folder:
            order = int(match[2]), int(match[3] or 0)
            found.append((order, Commit(folder, match[1], match[4])))
    return [commit for _, commit in sorted(found, key=lambda entry: (entry[0], entry[1].digest))]


def files_of(listing: dict[str, int], commit: Commit) -> dict[str, int]:
    """Name and size of the files of one checkpoint."""
    start = commit.prefix + "/"
    return {name[len(start) :]: size for name, size in listing.items() if name.startswith(start)}
