# SPDX-License-Identifier: Apache-2.0
"""Streams between machines of a Ray cluster: the server listens on its machine's address, with
token and TLS, and leaves a note in the cluster's store where it is to be found."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.experimental import internal_kv

from veldt.backends.shared_memory.fabric import stream_client, stream_server
from veldt.topology import StreamSpec
from veldt.wire.security import Security, with_certificate

_NAMESPACE = b"veldt"


@dataclass(frozen=True)
class ClusterLink:
    """Travels to every process at an end of the stream; they may start in any order."""

    spec: StreamSpec
    security: Security = field(default_factory=lambda: with_certificate(Security()))
    note: bytes = field(default_factory=lambda: f"veldt-stream-{secrets.token_hex(8)}".encode())

    def client(self, index: int) -> Any:
        return stream_client(self.spec, index, self._find, self.security.for_clients())

    def server(self) -> Any:
        host = ray.util.get_node_ip_address()
        address = f"[{host}]:0" if ":" in host else f"{host}:0"
        server = stream_server(self.spec, address, self.security)
        found = f"{address.removesuffix('0')}{server.port}"
        internal_kv._internal_kv_put(self.note, found.encode(), namespace=_NAMESPACE)
        return server

    def _find(self) -> str | None:
        found = internal_kv._internal_kv_get(self.note, namespace=_NAMESPACE)
        return found.decode() if found else None

    def close(self) -> None:
        if ray.is_initialized():
            internal_kv._internal_kv_del(self.note, namespace=_NAMESPACE)
