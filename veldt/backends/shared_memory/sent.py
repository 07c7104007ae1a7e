# SPDX-License-Identifier: Apache-2.0
"""A fabric on its way to a process that no list of descriptors can be handed to: they reach it one
by one over a Unix socket of the sender's, which asks for a key."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler

from veldt.backends.shared_memory.fabric import Fabric


@dataclass(frozen=True)
class SentFabric:
    """It can be opened once: the socket gives each descriptor away once."""

    key: bytes
    content: bytes

    @staticmethod
    def of(fabric: Fabric) -> SentFabric:
        return SentFabric(bytes(current_process().authkey), bytes(ForkingPickler.dumps(fabric)))

    def open(self) -> Fabric:
        current_process().authkey = self.key
        fabric: Fabric = ForkingPickler.loads(self.content)
        return fabric
