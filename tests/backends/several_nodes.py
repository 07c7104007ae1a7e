# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of several nodes on this machine, each with an address of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import veldt.backends.ray  # noqa: F401 - sets token and loopback before anything imports Ray

_HEALTH_CHECKS = {  # by default a lost node is noticed after 15 s
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class SeveralNodes:
    """A head with one CPU, where the driver is, and other nodes that come and go."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._addresses = (f"127.0.0.{number}" for number in range(1, 255))
        head = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": self._address()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address

    def _address(self) -> str:
        return next(self._addresses)

    def add(self, count: int = 1, num_cpus: int = 1) -> list[Any]:
        added = [
            self._cluster.add_node(wait=False, num_cpus=num_cpus, node_ip_address=self._address())
            for _ in range(count)
        ]
        self._cluster.wait_for_nodes()
        return added

    def lose(self, node: Any) -> None:
        """Kill everything on a node; nobody is told."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def several_nodes(**environment: str) -> Iterator[SeveralNodes]:
    """With this process connected to the head. Workers can import what lies beside this file."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with mock.patch.dict(os.environ, {**_HEALTH_CHECKS, "PYTHONPATH": path, **environment}):
        nodes = SeveralNodes()
        try:
            ray.init(address=nodes.address, log_to_driver=False)
            yield nodes
        finally:
            ray.shutdown()
            nodes.close()
