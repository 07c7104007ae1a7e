# SPDX-License-Identifier: Apache-2.0
"""An actor's stream to central inference: sends rows, receives actions, reconnects when it breaks.

What was not answered is asked again on the new stream; the server then begins anew with it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

import grpc
import numpy as np

from veldt.wire.event_loop import PolledEventLoop
from veldt.wire.messages import Refused, StreamFormat
from veldt.wire.security import TLS_NAME, TOKEN_HEADER, Security
from veldt.wire.server import METHOD, SERVICE, keepalive_options

_CONNECT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
GIVE_UP_SECONDS = 60.0
_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
)
"""Answers that trying again would not change."""

Answer = tuple[int, dict[str, np.ndarray]]


class StreamClient:
    """The client's end of a stream. `send` and `receive` never block; the event loop runs in them.

    `address` may be a function that looks it up before each attempt; None: not known yet."""

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
        self._asked: dict[int, int] = {}
        """Sequence -> group of the rows under way on this stream."""
        self._next_sequence = 0
        self._outgoing: asyncio.Queue[bytes] | None = None
        """What waits to be written on the stream; None while there is no stream."""
        self._loop = PolledEventLoop()
        self.connections = 0
        """Streams opened so far; more than one: the connection broke in between."""

    def connect(self, incarnation: int) -> None:
        """Begin to connect. Not done by the constructor: environments may fork processes, which
        must happen before gRPC has threads."""
        opening = self._format.encode_open(self._actor, incarnation)
        self._task = self._loop.asyncio_loop.create_task(self._stay_connected(opening))
        self._loop.run_once()

    def fileno(self) -> int:
        """Readable when something came in."""
        return self._loop.fileno()

    def send(self, group: int, data: bytes) -> None:
        """Ask about one row of `group`, whose last question must have been answered."""
        self._unanswered[group] = data
        if self._outgoing is not None:
            self._ask(self._outgoing, group, data)
        self._loop.run_once()

    def receive(self) -> Answer | None:
        """Group and arrays of the next answer. Raises ConnectionError when there is no hope."""
        if not self._inbox:
            self._loop.run_if_ready()
        if self._inbox:
            return self._inbox.popleft()
        if self._task.done():
            raise ConnectionError(f"central inference: {self._task.exception()}")
        return None

    def close(self) -> None:
        """Leave; the server sees a connection that ended."""
        if not self._loop.asyncio_loop.is_closed():
            self._task.cancel()
            self._loop.run_until_complete(asyncio.wait([self._task]))
            self._loop.close()

    async def _stay_connected(self, opening: bytes) -> None:
        pause, alive_at = _FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            answered = self.connections
            cause = await self._attend(opening)
            if self.connections > answered:
                pause, alive_at = _FIRST_PAUSE_SECONDS, time.monotonic()
            if time.monotonic() - alive_at > self._give_up_seconds:
                raise ConnectionError(f"no stream for {self._give_up_seconds:.0f} s: {cause}")
            # Spread out, so that all actors of a run do not come back in the same instant.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _attend(self, opening: bytes) -> str:
        """One stream from its beginning to its end; why it ended, if another one may help."""
        address = self._address() if callable(self._address) else self._address
        if address is None:
            return "the server has not said where it is"
        try:
            async with self._channel(address) as channel:
                await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
                call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
                    metadata=((TOKEN_HEADER, self._security.token),)
                )
                try:
                    await self._converse(call, opening)
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
            raise ConnectionError(f"its answer makes no sense, {refusal}") from refusal

    def _channel(self, address: str) -> grpc.aio.Channel:
        options: list[tuple[str, int | str]] = [
            *keepalive_options(self._format.max_reply_bytes),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not self._security.uses_tls:
            return grpc.aio.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(self._security.certificate)
        options.append(("grpc.ssl_target_name_override", TLS_NAME))
        return grpc.aio.secure_channel(address, credentials, options)

    async def _converse(self, call: grpc.aio.StreamStreamCall, opening: bytes) -> None:
        await call.write(opening)
        opened = await asyncio.wait_for(call.read(), _CONNECT_SECONDS)
        if opened is grpc.aio.EOF:
            await self._raise_status(call)
        self._format.check_opened(opened)
        self.connections += 1
        self._next_sequence, self._asked = 0, {}
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._outgoing = outgoing
        for group, data in self._unanswered.items():
            self._ask(outgoing, group, data)
        writing = asyncio.create_task(_write(call, outgoing))
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

    def _ask(self, outgoing: asyncio.Queue[bytes], group: int, data: bytes) -> None:
        self._asked[self._next_sequence] = group
        outgoing.put_nowait(self._format.encode_row(self._next_sequence, group, data))
        self._next_sequence += 1

    def _take(self, message: bytes) -> None:
        sequence, group, arrays = self._format.decode_answer(message)
        if self._asked.pop(sequence, None) != group:
            raise Refused("replayed", f"an answer to row {sequence}, which is not under way")
        del self._unanswered[group]
        self._inbox.append((group, arrays))


async def _write(call: grpc.aio.StreamStreamCall, outgoing: asyncio.Queue[bytes]) -> None:
    while True:
        await call.write(await outgoing.get())
