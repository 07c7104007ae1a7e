# SPDX-License-Identifier: Apache-2.0
"""The state of all node processes on its way into a checkpoint, while the run goes on.

Every node writes its part to disk when it comes round to it; the supervisor looks now and then
whether all are there. Nobody waits for a node that is busy, and one that cannot write says why.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from veldt.backends.process.child import Unsaved
from veldt.backends.saving import CHANNELS, Parts, part_of_absent, part_path
from veldt.checkpoints.store import CheckpointError, read_part
from veldt.topology import Topology

_CAPTURE_SECONDS = 60.0


def dispensable_nodes(topology: Topology) -> set[str]:
    """Nodes that a checkpoint can do without: actors, whose episodes begin anew, and those whose
    knowledge lies in shared memory."""
    actors = {node.name for node in topology.nodes if node.kind == "actor"}
    groups = (group for group in topology.groups() if group.restartable)
    return actors | {node.name for group in groups for node in group.nodes}


class ProcessCapture:
    """Parts of one checkpoint. Where a dispensable node takes longer than `patience_seconds`, its
    counters are taken as they are, and its role as in the last checkpoint."""

    def __init__(
        self,
        directory: Path,
        number: int,
        nodes: list[str],
        dispensable: set[str],
        patience_seconds: float,
        channels: Callable[[], dict[str, np.ndarray]],
        counters: Callable[[str], bytes],
        unsaved: Callable[[], list[Unsaved]],
        last: Path | None,
    ) -> None:
        self._directory, self._number, self._nodes = directory, number, nodes
        self._missing, self._absent = list(nodes), set[str]()
        self._dispensable = dispensable
        self._channels, self._counters, self._last = channels, counters, last
        self._unsaved = unsaved
        now = time.monotonic()
        self._patience = now + patience_seconds
        self._deadline = now + max(_CAPTURE_SECONDS, patience_seconds)

    def ready(self) -> bool:
        """Whether every part is there. Raises CheckpointError when one will not come."""
        self._missing = [name for name in self._missing if not self._path(name).exists()]
        for unsaved in self._unsaved():
            if unsaved.number == self._number and unsaved.node in self._missing:
                self._close()
                raise CheckpointError(
                    f"{unsaved.node} could not hand over its state: {unsaved.cause}"
                )
        now = time.monotonic()
        if now > self._patience and self._dispensable.issuperset(self._missing):
            self._absent, self._missing = set(self._missing), []
        if self._missing and now > self._deadline:
            self._close()
            raise CheckpointError(
                f"{', '.join(self._missing)} did not hand over their state in"
                f" {_CAPTURE_SECONDS:.0f} s"
            )
        return not self._missing

    def parts(self) -> Parts:
        """May take a while: everything is read and verified."""
        try:
            parts = {name: self._part(name) for name in self._nodes}
            # Boards last: whoever resumes must not find newer weights in a learner than on its
            # board.
            return {**parts, CHANNELS: self._channels()}
        finally:
            self._close()

    def _part(self, name: str) -> dict[str, np.ndarray]:
        if name not in self._absent:
            return read_part(self._path(name), name)
        last = read_part(self._last, name) if self._last is not None else {}
        return part_of_absent(self._counters(name), last)

    def _path(self, name: str) -> Path:
        return part_path(self._directory, self._number, name)

    def _close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
