# SPDX-License-Identifier: Apache-2.0
"""What the first simulator that connects says of its environment, before there is a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from veldt.environments import Interface
from veldt.wire.external_format import METHOD, SERVICE, check_hello, declared_interface, parsed
from veldt.wire.protocol import Refused
from veldt.wire.security import Security
from veldt.wire.transport import RpcServer

_MOST_BYTES = 1 << 20
_MOST_STREAMS = 16
_LOOK_SECONDS = 0.02
_AGAIN = "the run begins with these spaces; connect again"


@dataclass(frozen=True)
class Declaration:
    """The environments of a client."""

    interface: Interface
    action_masks: bool
    environments: int


class _Asking:
    """A stream that is only asked for its Hello. The client is sent away, and comes again."""

    def __init__(self, servicer: _DeclarationServicer) -> None:
        self._servicer = servicer

    def receive(self, message: bytes) -> None:
        if len(message) > _MOST_BYTES:
            raise Refused("oversized", f"{len(message):,} bytes, {_MOST_BYTES:,} allowed")
        request = parsed(message)
        if request.WhichOneof("kind") != "hello":
            raise Refused("malformed", "a stream begins with Hello")
        hello = request.hello
        check_hello(hello)
        interface = declared_interface(hello)
        self._servicer.found = Declaration(interface, hello.action_masks, hello.environments)
        raise Refused("no_place", _AGAIN)

    def close(self) -> None: ...


class _DeclarationServicer:
    def __init__(self) -> None:
        self.found: Declaration | None = None
        self.refused: Counter[str] = Counter()

    def connect(self, send: Callable[[bytes], None]) -> _Asking:
        return _Asking(self)

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def take(self) -> Declaration | None:
        return self.found

    def answer(self, request: Declaration, data: bytes) -> None: ...


def first_declaration(
    address: str, security: Security, goes_on: Callable[[], bool]
) -> Declaration | None:
    """Listen until a client has said what its environments are like; None once `goes_on` says that
    nobody waits for it any more."""
    server = RpcServer(
        _DeclarationServicer(), (SERVICE, METHOD), _MOST_BYTES, _MOST_STREAMS, address, security
    )
    try:
        while goes_on():
            found = server.take()
            if found is not None:
                return found
            time.sleep(_LOOK_SECONDS)
    finally:
        server.close()
    return None
