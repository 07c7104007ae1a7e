# SPDX-License-Identifier: Apache-2.0
"""An actor's stream to central inference: sends rows, receives actions, reconnects when it breaks.

What was not answered is asked again on the new stream; the server then begins anew with it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable

import grpc
import numpy as np

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
    """The asking port. `send` and `receive` never block; the rest happens in its own thread.

    `address` may be a function that looks it up before each attempt; None: not known yet."""

    def __init__(
        self,
        format: StreamFormat,
        actor: int,
        address: str | Callable[[], str | None],
        security: Security,
        ring: Callable[[], None],
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        self._format, self._actor, self._address = format, actor, address
        self._security, self._ring, self._give_up_seconds = security, ring, give_up_seconds
        self._inbox: deque[Answer] = deque()
        self._unanswered: dict[int, bytes] = {}
        self._asked: dict[int, int] = {}
        """Sequence -> group of the rows under way on this stream."""
        self._next_sequence = 0
        self._call: grpc.aio.StreamStreamCall | None = None
        self._failure: ConnectionError | None = None
        self._loop = asyncio.new_event_loop()
        self.connections = 0
        """Streams opened so far; more than one: the connection broke in between."""

    def connect(self, incarnation: int) -> None:
        """Begin to connect. Not done by the constructor: environments may fork processes, which
        must happen before gRPC has threads."""
        opening = self._format.encode_open(self._actor, incarnation)
        threading.Thread(
            target=self._run, args=(opening,), name=f"wire-client-{self._actor}", daemon=True
        ).start()

    def send(self, group: int, data: bytes) -> None:
        """Ask about one row of `group`, whose last question must have been answered."""
        if self._failure is not None:
            raise self._failure
        self._loop.call_soon_threadsafe(self._submit, group, data)

    def receive(self) -> Answer | None:
        """Group and arrays of the next answer. Raises ConnectionError when there is no hope."""
        if self._inbox:
            return self._inbox.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    def close(self) -> None:
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self, opening: bytes) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._stay_connected(opening))
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            self._failure = ConnectionError("the stream was closed")
        except Exception as error:
            self._failure = ConnectionError(f"central inference: {error}")
        self._ring()

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
                    self._call = None
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
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._call = call
        for group, data in list(self._unanswered.items()):
            self._ask(group, data)
        writing = asyncio.create_task(_write(call, self._outgoing))
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

    def _submit(self, group: int, data: bytes) -> None:
        self._unanswered[group] = data
        if self._call is not None:
            self._ask(group, data)

    def _ask(self, group: int, data: bytes) -> None:
        self._asked[self._next_sequence] = group
        self._outgoing.put_nowait(self._format.encode_row(self._next_sequence, group, data))
        self._next_sequence += 1

    def _take(self, message: bytes) -> None:
        sequence, group, arrays = self._format.decode_answer(message)
        if self._asked.pop(sequence, None) != group:
            raise Refused("replayed", f"an answer to row {sequence}, which is not under way")
        del self._unanswered[group]
        self._inbox.append((group, arrays))
        self._ring()


async def _write(call: grpc.aio.StreamStreamCall, outgoing: asyncio.Queue[bytes]) -> None:
    while True:
        await call.write(await outgoing.get())
