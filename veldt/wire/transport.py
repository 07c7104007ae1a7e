# SPDX-License-Identifier: Apache-2.0
"""Both ends of a stream over gRPC: servers of central inference and external simulators, and an
actor's client.

One event loop serves all streams, so idle or hostile connections cost no thread. After a broken
connection the client sends its unanswered rows again on a new stream.
"""

from __future__ import annotations

import asyncio
import random
import select
import selectors
import time
from collections import deque
from collections.abc import Callable

import grpc
import numpy as np

from veldt.errors import ConfigurationError
from veldt.ports import ReceivedRow
from veldt.wire.protocol import METHOD, SERVICE, Refused, Servicer, Session, StreamFormat
from veldt.wire.security import TLS_NAME, TOKEN_HEADER, Security, check_address

_GRACE_SECONDS = 0.2
_BEGIN_SECONDS = 60.0
"""A stream that has not begun by then is ended, because it holds the place of another client."""
_COUNTED_EXCESS_BYTES = 4 << 20
"""Messages that exceed the limit by up to this are received, to be refused and counted. For larger
ones gRPC ends the stream without reading the message or reporting it."""
_CODES = {
    "oversized": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "out_of_turn": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "old_incarnation": grpc.StatusCode.FAILED_PRECONDITION,
    "superseded": grpc.StatusCode.ABORTED,
    "no_place": grpc.StatusCode.UNAVAILABLE,
    "idle": grpc.StatusCode.UNAVAILABLE,
    "other_spaces": grpc.StatusCode.FAILED_PRECONDITION,
}


def keepalive_options(max_receive_bytes: int) -> list[tuple[str, int]]:
    """Options by which either end notices a dead peer within 15 s; both ends must set them."""
    return [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # A pending bandwidth ping delays keepalive, by default for a minute.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


_TIMER_SECONDS = 0.01


class PolledEventLoop(asyncio.SelectorEventLoop):
    """An event loop that runs only in short calls, in the caller's thread.

    With a thread for the loop beside the role's thread, the two would pass the interpreter lock to
    each other several times per row, which costs more than the row itself. gRPC's own threads do
    the network I/O. `fileno()` is readable when there is something to run."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self.fileno = selector.fileno
        self._readable = select.poll()
        self._readable.register(selector.fileno(), select.POLLIN)
        self._next_timers = 0.0

    def run_once(self) -> None:
        """Process what was received: the first round wakes tasks, the second one runs them."""
        self.call_soon(self.call_soon, self.stop)
        self.run_forever()

    def run_if_ready(self) -> None:
        """Run if something was received, or if a timer may have expired since the last run."""
        now = time.monotonic()
        if self._readable.poll(0) or now >= self._next_timers:
            self._next_timers = now + _TIMER_SECONDS
            self.run_once()


class RpcServer:
    """The server end of all streams, which listens from its construction on."""

    def __init__(self, servicer: Servicer, address: str, security: Security) -> None:
        check_address(address, security)
        self._servicer, self._security = servicer, security
        self._has_outgoing = False
        self._loop = PolledEventLoop()
        self._loop.run_until_complete(self._listen(address))

    @property
    def refused(self) -> dict[str, int]:
        """Counts of refused messages and callers, by reason."""
        return self._servicer.refused

    def fileno(self) -> int:
        """Readable when something was received."""
        return self._loop.fileno()

    def take(self) -> ReceivedRow | None:
        """The next row; sends queued answers and reads messages when none is waiting."""
        row = self._servicer.take()
        if row is None:
            if self._has_outgoing:
                self._has_outgoing = False
                self._loop.run_once()
            else:
                self._loop.run_if_ready()
            row = self._servicer.take()
        return row

    def close(self) -> None:
        """End all streams; actors see a lost connection."""
        if not self._loop.is_closed():
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
                *keepalive_options(self._servicer.max_request_bytes + _COUNTED_EXCESS_BYTES),
                # Two servers on one port would each get some of the streams.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=self._servicer.max_streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        service, method = self._servicer.method
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
            self._servicer.refused["unauthenticated"] += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown token")
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()

        def send(message: bytes) -> None:
            self._has_outgoing = True
            outgoing.put_nowait(message)

        session, may_write = self._servicer.connect(send), asyncio.Lock()
        writing = asyncio.create_task(_write(context, outgoing, may_write))
        try:
            await _read(context, session)
            await may_write.acquire()  # gRPC cannot end a stream in the middle of a write
        except Refused as refusal:
            self._servicer.refused[refusal.reason] += 1
            code = _CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
            await may_write.acquire()
            await context.abort(code, str(refusal))
        finally:
            writing.cancel()
            session.close()


async def _read(context: grpc.aio.ServicerContext, session: Session) -> None:
    """Read until the client ends the stream; raises Refused."""
    try:
        async with asyncio.timeout(_BEGIN_SECONDS) as limit:
            while (message := await context.read()) is not grpc.aio.EOF:
                session.receive(message)
                if session.has_begun:
                    limit.reschedule(None)
    except TimeoutError as error:
        raise Refused("idle", f"no step came within {_BEGIN_SECONDS:.0f} s") from error


async def _write(
    stream: grpc.aio.ServicerContext | grpc.aio.StreamStreamCall,
    outgoing: asyncio.Queue[bytes],
    may_write: asyncio.Lock,
) -> None:
    while True:
        message = await outgoing.get()
        async with may_write:
            await stream.write(message)


_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
GIVE_UP_SECONDS = 60.0
_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
)
"""Status codes for which a retry is useless."""

Answer = tuple[int, dict[str, np.ndarray]]


class StreamClient:
    """The client end of a stream. `send` and `receive` never block; they run the event loop.

    `address` may be a function that is called before each attempt; None: not known yet."""

    def __init__(
        self,
        format: StreamFormat,
        actor: int,
        address: str | Callable[[], str | None],
        security: Security,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        self._format, self._actor, self._address = format, actor, address
        self._security, self._give_up_seconds = security, give_up_seconds
        self._inbox: deque[Answer] = deque()
        self._unanswered: dict[int, bytes] = {}
        self._outgoing: asyncio.Queue[bytes] | None = None
        """Messages to be written on the stream; None while there is no stream."""
        self._loop = PolledEventLoop()
        self.connections = 0
        """Streams opened so far; each one after the first follows a broken connection."""

    def connect(self, incarnation: int) -> None:
        """Begin to connect, separate from the constructor because environments may fork processes,
        which must happen before gRPC has threads."""
        opening = self._format.encode_open(self._actor, incarnation)
        self._task = self._loop.create_task(self._stay_connected(opening))
        self._loop.run_once()

    def fileno(self) -> int:
        """Readable when something was received."""
        return self._loop.fileno()

    def send(self, group: int, data: bytes) -> None:
        """Send one row of `group`, whose last row must have been answered."""
        self._unanswered[group] = data
        if self._outgoing is not None:
            self._outgoing.put_nowait(self._format.encode_row(group, data))
        self._loop.run_once()

    def receive(self) -> Answer | None:
        """Group and arrays of the next answer, or None. ConnectionError: retries are over."""
        if not self._inbox:
            self._loop.run_if_ready()
        if self._inbox:
            return self._inbox.popleft()
        if self._task.done():
            raise ConnectionError(f"central inference: {self._task.exception()}")
        return None

    def close(self) -> None:
        """End the stream."""
        if not self._loop.is_closed():
            self._task.cancel()
            self._loop.run_until_complete(asyncio.wait([self._task]))
            self._loop.close()

    async def _stay_connected(self, opening: bytes) -> None:
        pause, alive_at = _FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            answered = self.connections
            cause = await self._run_stream(opening)
            if self.connections > answered:
                pause, alive_at = _FIRST_PAUSE_SECONDS, time.monotonic()
            if time.monotonic() - alive_at > self._give_up_seconds:
                raise ConnectionError(f"no stream for {self._give_up_seconds:.0f} s: {cause}")
            # Random, so that the actors of a run do not all reconnect at the same time.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _run_stream(self, opening: bytes) -> str:
        """Run one stream to its end; returns why it ended, if a retry may help."""
        address = self._address() if callable(self._address) else self._address
        if address is None:
            return "the address of the server is not known yet"
        try:
            async with self._channel(address) as channel:
                await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
                call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
                    metadata=((TOKEN_HEADER, self._security.token),)
                )
                try:
                    await self._exchange_rows(call, opening)
                finally:
                    self._outgoing = None
                    call.cancel()
                return "the server ended the stream"
        except grpc.aio.AioRpcError as error:
            if error.code() in _FINAL:
                raise ConnectionError(f"refused, {error.details()}") from error
            return f"{error.code().name}: {error.details()}"
        except (TimeoutError, asyncio.InvalidStateError) as error:
            return f"{type(error).__name__}: {error}"
        except Refused as refusal:
            raise ConnectionError(f"invalid answer, {refusal}") from refusal

    def _channel(self, address: str) -> grpc.aio.Channel:
        options: list[tuple[str, int | str]] = [
            *keepalive_options(self._format.max_reply_bytes),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self._security.certificate is None:
            return grpc.aio.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(self._security.certificate)
        options.append(("grpc.ssl_target_name_override", TLS_NAME))
        return grpc.aio.secure_channel(address, credentials, options)

    async def _exchange_rows(self, call: grpc.aio.StreamStreamCall, opening: bytes) -> None:
        await call.write(opening)
        opened = await asyncio.wait_for(call.read(), _CONNECT_SECONDS)
        if opened is grpc.aio.EOF:
            await self._raise_status(call)
        self._format.check_digest(opened)
        self.connections += 1
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._outgoing = outgoing
        for group, data in self._unanswered.items():
            outgoing.put_nowait(self._format.encode_row(group, data))
        writing = asyncio.create_task(_write(call, outgoing, asyncio.Lock()))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._take(message)
        finally:
            writing.cancel()
        await self._raise_status(call)

    @staticmethod
    async def _raise_status(call: grpc.aio.StreamStreamCall) -> None:
        code = await call.code()
        if code in _FINAL:
            raise ConnectionError(f"refused, {await call.details()}")

    def _take(self, message: bytes) -> None:
        group, arrays = self._format.decode_reply(message)
        if self._unanswered.pop(group, None) is None:
            raise Refused("replayed", f"an answer to group {group}, which has no row in flight")
        self._inbox.append((group, arrays))
