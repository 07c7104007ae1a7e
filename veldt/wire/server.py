# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of central inference and of simulators elsewhere. One event loop serves all
streams, so that idle or hostile connections cost no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import grpc

from veldt.errors import ConfigurationError
from veldt.wire.event_loop import PolledEventLoop
from veldt.wire.messages import Refused, StreamFormat
from veldt.wire.security import Security, check_address
from veldt.wire.servicer import InferenceRequest, StreamServicer

SERVICE, METHOD = "veldt.wire.CentralInference", "Infer"
_GRACE_SECONDS = 0.2
_COUNTED_EXCESS_BYTES = 4 << 20
"""Messages larger than allowed by up to this reach us to be refused and counted. Beyond, gRPC
itself ends the stream before it holds the message, and does not tell."""
_CODES = {
    "oversized": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "out_of_turn": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "old_incarnation": grpc.StatusCode.FAILED_PRECONDITION,
    "superseded": grpc.StatusCode.ABORTED,
    "no_place": grpc.StatusCode.UNAVAILABLE,
    "other_spaces": grpc.StatusCode.FAILED_PRECONDITION,
}


def keepalive_options(max_receive_bytes: int) -> list[tuple[str, int]]:
    """A dead peer is noticed within 15 s by either end; both must agree that pings are welcome."""
    return [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # Pings that measure bandwidth put keepalive off while they wait, a minute by default.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


class Session(Protocol):
    """One stream, as a servicer sees it."""

    def receive(self, message: bytes) -> None:
        """Take one message; raises Refused, after which the stream must end."""

    def close(self) -> None:
        """The stream has ended."""


Request = TypeVar("Request")


class Servicer(Protocol[Request]):
    """What happens on the streams, without any transport."""

    @property
    def refused(self) -> dict[str, int]: ...

    def connect(self, send: Callable[[bytes], None]) -> Session: ...

    def refuse(self, reason: str) -> None: ...

    def take(self) -> Request | None: ...

    def answer(self, request: Request, data: bytes) -> None: ...


class RpcServer(Generic[Request]):
    """The server's end of all streams: `take` a row, `answer` it. Listens from its construction on;
    what comes in is looked at when `take` finds nothing waiting."""

    def __init__(
        self,
        servicer: Servicer[Request],
        method: tuple[str, str],
        max_request_bytes: int,
        max_streams: int,
        address: str,
        security: Security,
    ) -> None:
        check_address(address, security)
        self._servicer, self._security, self._method = servicer, security, method
        self._max_request_bytes, self._max_streams = max_request_bytes, max_streams
        self._answered = False
        self._loop = PolledEventLoop()
        self._loop.run_until_complete(self._listen(address))

    @property
    def refused(self) -> dict[str, int]:
        """Messages and callers refused so far, by reason."""
        return self._servicer.refused

    def fileno(self) -> int:
        """Readable when something came in."""
        return self._loop.fileno()

    def take(self) -> Request | None:
        request = self._servicer.take()
        if request is None:
            if self._answered:
                self._answered = False
                self._loop.run_once()
            else:
                self._loop.run_if_ready()
            request = self._servicer.take()
        return request

    def answer(self, request: Request, data: bytes) -> None:
        """The answer leaves with the next `take` that finds nothing waiting."""
        self._answered = True
        self._servicer.answer(request, data)

    def close(self) -> None:
        """End all streams; actors see it as a lost connection."""
        if not self._loop.asyncio_loop.is_closed():
            self._loop.run_until_complete(self._server.stop(_GRACE_SECONDS))
            self._loop.close()

    async def _listen(self, address: str) -> None:
        try:
            self._server = self._make_server(address)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {address}: {error}; is something else listening there?"
            ) from error
        await self._server.start()

    def _make_server(self, address: str) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=[
                *keepalive_options(self._max_request_bytes + _COUNTED_EXCESS_BYTES),
                # Two servers on one port would each get some of the streams.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=self._max_streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        service, method = self._method
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        security = self._security
        if security.certificate and security.key:
            pair = ((security.key, security.certificate),)
            self.port = server.add_secure_port(address, grpc.ssl_server_credentials(pair))
        else:
            self.port = server.add_insecure_port(address)
        return server

    async def _serve(self, _: object, context: grpc.aio.ServicerContext) -> None:
        if not self._security.admits(context.invocation_metadata() or ()):
            self._servicer.refuse("unauthenticated")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown token")
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()

        session, may_write = self._servicer.connect(outgoing.put_nowait), asyncio.Lock()
        writing = asyncio.create_task(_write(context, outgoing, may_write))
        try:
            await _read(session, context)
        except Refused as refusal:
            code = _CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
            await may_write.acquire()  # gRPC cannot end a stream in the middle of a write
            await context.abort(code, str(refusal))
        finally:
            writing.cancel()
            session.close()


class StreamServer(RpcServer[InferenceRequest]):
    """The server's end of the streams of all actors."""

    def __init__(
        self,
        format: StreamFormat,
        num_clients: int,
        groups_per_client: int,
        address: str,
        security: Security,
    ) -> None:
        super().__init__(
            StreamServicer(format, num_clients, groups_per_client),
            (SERVICE, METHOD),
            format.max_request_bytes,
            # A new stream may come before the old one is known to be dead: two for each actor.
            2 * num_clients + 8,
            address,
            security,
        )


async def _read(session: Session, context: grpc.aio.ServicerContext) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        session.receive(message)


async def _write(
    context: grpc.aio.ServicerContext, outgoing: asyncio.Queue[bytes], may_write: asyncio.Lock
) -> None:
    while True:
        message = await outgoing.get()
        async with may_write:
            await context.write(message)
