# SPDX-License-Identifier: Apache-2.0
"""The state of all node processes of a Ray run on its way into a checkpoint, while the run goes on.

Where a process is being replaced, its successor is asked; actors that the cluster has no room for
are left as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from veldt.backends.checkpoint_parts import CHANNELS, Parts, captured_boards
from veldt.backends.ray.cluster import ray
from veldt.backends.ray.host import Host, answers
from veldt.backends.ray.messages import Captured
from veldt.backends.ray.supervisor import Supervisor
from veldt.checkpoints.store import CheckpointError
from veldt.types import Parameters

_CAPTURE_SECONDS = 60.0


class RayCapture:
    """Asks every group for its part and collects what comes."""

    def __init__(
        self,
        supervisor: Supervisor,
        groups: set[str],
        parts_of_absent: Callable[[set[str]], Parts],
        own: dict[str, Parameters],
    ) -> None:
        self._supervisor, self._groups = supervisor, groups
        self._parts_of_absent = parts_of_absent
        self._own = captured_boards(own)
        self._asked: dict[str, tuple[Host, Any]] = {}
        self._found: dict[str, Captured] = {}
        self._deadline = time.monotonic() + _CAPTURE_SECONDS

    def ready(self) -> bool:
        for name in self._asked.keys() - self._found.keys():
            for captured in answers([self._asked[name][1]], seconds=0):
                self._found[name] = captured
        missing = self._groups - self._found.keys() - self._supervisor.absent()
        if missing and time.monotonic() > self._deadline:
            raise CheckpointError(
                f"{', '.join(sorted(missing))} did not hand over their state in"
                f" {_CAPTURE_SECONDS:.0f} s"
            )
        for name in missing:
            host = self._supervisor.hosts.get(name)
            if host is not None and (name not in self._asked or self._asked[name][0] is not host):
                self._asked[name] = (host, host.handle.capture.remote())
        return not missing

    def parts(self) -> Parts:
        parts: Parts = {CHANNELS: self._own}
        for group in self._found.values():
            parts |= {name: ray.get(part) for name, part in group.parts.items()}
            parts[CHANNELS] |= group.channels
        return self._parts_of_absent(self._groups - self._found.keys()) | parts
