# SPDX-License-Identifier: Apache-2.0
"""How the ends of a stream find each other: in one thread, or over a Unix socket that only this
user can reach. gRPC is imported where a socket is used, and only then."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from veldt.topology import StreamSpec
from veldt.wire.protocol import LocalClient, StreamFormat, StreamServicer
from veldt.wire.security import Security, from_environment

_PREFIX = "veldt-streams-"


class Link(Protocol):
    """Makes the ports of one stream."""

    def client(self, index: int) -> Any: ...

    def server(self) -> Any: ...

    def close(self) -> None: ...


class LocalLink:
    """All ends in one thread: nodes that take turns."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._servicer = StreamServicer(
            stream_format(spec), spec.num_clients, spec.groups_per_client
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalLink, (self._spec,)

    def client(self, index: int) -> LocalClient:
        return LocalClient(self._servicer.format, index, self._servicer)

    def server(self) -> StreamServicer:
        return self._servicer

    def close(self) -> None: ...


@dataclass(frozen=True)
class SocketLink:
    """Ends in several processes. Travels to each of them; the server's listens, the others call."""

    spec: StreamSpec
    address: str
    security: Security = field(default_factory=Security)
    directory: Path | None = None

    def client(self, index: int) -> Any:
        return stream_client(self.spec, index, self.address, self.security)

    def server(self) -> Any:
        return stream_server(self.spec, self.address, self.security)

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True)
class ExternalLink:
    """A stream whose clients are simulators elsewhere; the server's node listens for them."""

    spec: StreamSpec
    security: Security

    def client(self, index: int) -> Any:
        raise AssertionError("external simulators are the clients")

    def server(self) -> Any:
        from veldt.wire.external import ExternalFormat, ExternalServer

        endpoint = self.spec.external
        assert endpoint is not None
        format = ExternalFormat(endpoint.interface, learns=True, takes_masks=endpoint.takes_masks)
        width = self.spec.request["first"].shape[0]
        num_places = self.spec.num_clients * self.spec.groups_per_client
        return ExternalServer(format, endpoint.address, self.security, num_places, width)

    def close(self) -> None: ...


def link_for(spec: StreamSpec, crosses: Callable[[StreamSpec], Link] | None) -> Link:
    """What carries a stream; `crosses` makes it where the ends are in different processes."""
    if spec.external is not None:
        return ExternalLink(spec, from_environment(spec.external.address))
    return LocalLink(spec) if crosses is None else crosses(spec)


def stream_format(spec: StreamSpec) -> StreamFormat:
    return StreamFormat(spec.request, spec.reply)


def stream_client(
    spec: StreamSpec, index: int, address: str | Callable[[], str | None], security: Security
) -> Any:
    """Client number `index`, which calls the server at `address`."""
    from veldt.wire.transport import StreamClient

    return StreamClient(stream_format(spec), index, address, security)


def stream_server(spec: StreamSpec, address: str, security: Security) -> Any:
    """The server, which listens at `address`."""
    from veldt.wire.transport import StreamServer

    return StreamServer(
        stream_format(spec), spec.num_clients, spec.groups_per_client, address, security
    )


def unix_link(spec: StreamSpec) -> SocketLink:
    """A link over a socket in a new directory of mode 0700."""
    remove_orphans()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    return SocketLink(spec, f"unix:{directory}/socket", directory=directory)


def remove_orphans() -> None:
    """Directories of supervisors that were killed before they could tidy up."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)
