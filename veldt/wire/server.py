# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of central inference. One event loop serves the streams of all actors, so that
idle or hostile connections cost no thread."""

from __future__ import annotations

import asyncio

import grpc

from veldt.wire.event_loop import PolledEventLoop
from veldt.wire.messages import Refused, StreamFormat
from veldt.wire.security import Security, check_address
from veldt.wire.servicer import InferenceRequest, Session, StreamServicer

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


class StreamServer:
    """The server's end of all streams: `take` a row, `answer` it. Listens from its construction on;
    what comes in is looked at when `take` finds nothing waiting."""

    def __init__(
        self,
        format: StreamFormat,
        num_clients: int,
        groups_per_client: int,
        address: str,
        security: Security,
    ) -> None:
        check_address(address, security)
        self._format, self._security = format, security
        self._servicer = StreamServicer(format, num_clients, groups_per_client)
        # A new stream may come before the old one is known to be dead, so each actor has two.
        self._max_streams = 2 * num_clients + 8
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

    def take(self) -> InferenceRequest | None:
        request = self._servicer.take()
        if request is None:
            if self._answered:
                self._answered = False
                self._loop.run_once()
            else:
                self._loop.run_if_ready()
            request = self._servicer.take()
        return request

    def answer(self, request: InferenceRequest, data: bytes) -> None:
        """The answer leaves with the next `take` that finds nothing waiting."""
        self._answered = True
        self._servicer.answer(request, data)

    def close(self) -> None:
        """End all streams; actors see it as a lost connection."""
        if not self._loop.asyncio_loop.is_closed():
            self._loop.run_until_complete(self._server.stop(_GRACE_SECONDS))
            self._loop.close()

    async def _listen(self, address: str) -> None:
        self._server = self._make_server(address)
        await self._server.start()

    def _make_server(self, address: str) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=keepalive_options(self._format.max_request_bytes + _COUNTED_EXCESS_BYTES),
            maximum_concurrent_rpcs=self._max_streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
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
