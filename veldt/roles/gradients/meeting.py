# SPDX-License-Identifier: Apache-2.0
"""How learners find each other for torch.distributed, and again after one of them was replaced.

The first learner keeps a store, and announces it and the number of the present group on a board.
Everybody reports there; once all have, the first one says which backend to use and all connect.
When a member is gone, the rest of its group is told so by the connection; they wait for the next
number. A replaced member finds that its number was already used, and waits too.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch.distributed as dist

from veldt.context import NodeContext
from veldt.ports import ParameterSink, ParameterSource
from veldt.role import Part
from veldt.types import Parameters

ANNOUNCEMENT = np.zeros(6, np.float32)
"""Where the store is: an IPv4 address, a port, and the number of the group; 0: there is none."""
_CONNECT_SECONDS = 10.0
# A learner may wait long for its next batch; one that hangs is ended by the run's supervisor, which
# its connections tell.
_COLLECTIVE_TIME = timedelta(hours=12)


@dataclass(eq=False)
class Meeting(Part):
    """One learner's view of it. `board` is None for all but the first learner."""

    rank: int
    size: int
    announced: ParameterSource
    board: ParameterSink | None = None

    def open(self, context: NodeContext, device: str) -> None:
        self._address, self._device = context.address, device
        self._seen, self._number = np.empty_like(ANNOUNCEMENT), 0
        self._store: dist.TCPStore | None = None
        self._store_at: tuple[str, int] | None = None
        self._has_reported = False
        if self.board is not None:
            self._keep_store()

    def _keep_store(self) -> None:
        listener = socket.create_server((self._address, 0), backlog=self.size)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            self._address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._store_at = (self._address, port)
        self._announce_next()

    def _announce_next(self) -> None:
        assert self.board is not None
        assert self._store_at is not None
        self.announced.pull(self._seen, newer_than=-1)
        number = int(self._seen[5]) + 1
        address, port = self._store_at
        numbers = [*(int(part) for part in address.split(".")), port, number]
        self.board.publish(Parameters(np.array(numbers, np.float32), number))

    def leave(self) -> None:
        """The group is no more: one of its members is gone."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._has_reported = False
        if self.board is not None:
            self._announce_next()

    def join(self) -> str | None:
        """Go on with the way into the next group; returns its backend once all members are in."""
        if not self._has_reported and not self._report():
            return None
        assert self._store is not None
        group = dist.PrefixStore(str(self._number), self._store)
        if self.board is not None and not self._decide(group):
            return None
        if not group.check(["backend"]):
            return None
        backend: str = group.get("backend").decode()
        if ipaddress.ip_address(self._address).is_loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody else is to reach it
        dist.init_process_group(
            backend, store=group, rank=self.rank, world_size=self.size, timeout=_COLLECTIVE_TIME
        )
        return backend

    def _report(self) -> bool:
        """Whether a group was announced that this learner is not known to have been in."""
        self.announced.pull(self._seen, newer_than=-1)
        *address, port, number = (int(entry) for entry in self._seen)
        if number <= self._number or not self._connect(".".join(map(str, address)), port):
            return False
        assert self._store is not None
        self._number = number
        group = dist.PrefixStore(str(number), self._store)
        if group.add(f"reports of {self.rank}", 1) > 1:
            return False
        group.set(f"device of {self.rank}", f"{socket.gethostname()} {self._device}")
        self._has_reported = True
        return True

    def _connect(self, address: str, port: int) -> bool:
        """False where nobody listens: what is announced is from before a restart."""
        if (address, port) == self._store_at:
            return True
        try:
            socket.create_connection((address, port), _CONNECT_SECONDS).close()
        except OSError:
            return False
        patience = timedelta(seconds=_CONNECT_SECONDS)
        self._store = dist.TCPStore(address, port, timeout=patience, wait_for_workers=False)
        self._store_at = (address, port)
        return True

    def _decide(self, group: dist.Store) -> bool:
        """As the first learner: whether all have reported, and so the backend is known."""
        names = [f"device of {rank}" for rank in range(self.size)]
        if not group.check(names):
            return False
        devices = [group.get(name).decode() for name in names]
        group.set("backend", backend_for(devices))
        return True


def backend_for(devices: list[str]) -> str:
    """nccl where each learner has a GPU of its own, which nccl insists on; else gloo."""
    on_gpus = all(device.split()[-1].startswith("cuda") for device in devices)
    is_distinct = len(set(devices)) == len(devices)
    return "nccl" if on_gpus and is_distinct and dist.is_nccl_available() else "gloo"
