# SPDX-License-Identifier: Apache-2.0
"""How the ends of a stream find each other: in one thread, or over a Unix socket that only this
user can reach. gRPC is imported where a socket is used, and only then."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from veldt.topology import StreamSpec
from veldt.wire.local import LocalClient
from veldt.wire.messages import StreamFormat
from veldt.wire.security import Security
from veldt.wire.servicer import StreamServicer

_PREFIX = "veldt-streams-"


class Bell(Protocol):
    """What wakes a sleeping node."""

    def watch(self, fd: int) -> None:
        """Wake it also whenever `fd` is readable."""


class Silence:
    """Nobody sleeps."""

    def watch(self, fd: int) -> None: ...


class Link(Protocol):
    """Makes the ports of one stream, for a node that `bell` wakes."""

    def client(self, index: int, bell: Bell) -> Any: ...

    def server(self, bell: Bell) -> Any: ...

    def close(self) -> None: ...


class LocalLink:
    """All ends in one thread: nodes that take turns."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._desk = StreamServicer(stream_format(spec), spec.num_clients, spec.groups_per_client)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalLink, (self._spec,)

    def client(self, index: int, bell: Bell) -> LocalClient:
        return LocalClient(self._desk.format, index, self._desk)

    def server(self, bell: Bell) -> StreamServicer:
        return self._desk

    def close(self) -> None: ...


@dataclass(frozen=True)
class SocketLink:
    """Ends in several processes. Travels to each of them; the server's listens, the others call."""

    spec: StreamSpec
    address: str
    security: Security = field(default_factory=Security)
    directory: Path | None = None

    def client(self, index: int, bell: Bell) -> Any:
        from veldt.wire.client import StreamClient

        client = StreamClient(stream_format(self.spec), index, self.address, self.security)
        bell.watch(client.fileno())
        return client

    def server(self, bell: Bell) -> Any:
        from veldt.wire.server import StreamServer

        spec, format = self.spec, stream_format(self.spec)
        server = StreamServer(
            format, spec.num_clients, spec.groups_per_client, self.address, self.security
        )
        bell.watch(server.fileno())
        return server

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def stream_format(spec: StreamSpec) -> StreamFormat:
    return StreamFormat(spec.request, spec.reply)


def unix_link(spec: StreamSpec) -> SocketLink:
    """A link over a socket in a new directory of mode 0700."""
    _remove_orphans()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    return SocketLink(spec, f"unix:{directory}/socket", directory=directory)


def _remove_orphans() -> None:
    """Directories of supervisors that were killed before they could tidy up."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)
