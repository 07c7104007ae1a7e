# SPDX-License-Identifier: Apache-2.0
"""A small format, its rows, and servers and clients that use it."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np
import pytest

from veldt.types import Field, Layout
from veldt.wire.protocol import METHOD, SERVICE, StreamFormat, StreamServicer
from veldt.wire.security import TOKEN_HEADER, Security
from veldt.wire.transport import RpcServer, StreamClient

WIDTH = 4
FORMAT = StreamFormat(
    Layout.of(
        observation=Field((WIDTH, 3), "float32"),
        first=Field((WIDTH,), "bool"),
        reward=Field((WIDTH,), "float32"),
    ),
    Layout.of(env_action=Field((WIDTH,), "int64")),
)
SECURITY = Security("the token of these tests")
PATIENCE_SECONDS = 30.0

Found = TypeVar("Found")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def row_bytes(value: float = 0.0, layout: Layout = FORMAT.request) -> bytes:
    buffer = np.zeros(layout.nbytes, np.uint8)
    layout.views(buffer)["observation"][:] = value
    return buffer.tobytes()


def answer_bytes(value: int) -> bytes:
    buffer = np.zeros(FORMAT.reply.nbytes, np.uint8)
    FORMAT.reply.views(buffer)["env_action"][:] = value
    return buffer.tobytes()


def wait_for(
    poll: Callable[[], Found | None], what: str, others: Callable[[], object] | None = None
) -> Found:
    """The first result of `poll`; calls `others` meanwhile and fails after a timeout."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := poll()) is None:
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        if others is not None:
            others()
        time.sleep(0.001)
    return found


@contextmanager
def serving(
    directory: Path, address: str | None = None, num_clients: int = 2, security: Security = SECURITY
) -> Iterator[tuple[RpcServer, str]]:
    address = address or f"unix:{directory}/socket"
    server = RpcServer(StreamServicer(FORMAT, num_clients, 1), address, security)
    try:
        yield server, address
    finally:
        server.close()


@contextmanager
def calling(
    address: str,
    actor: int = 0,
    incarnation: int = 0,
    security: Security = SECURITY,
    format: StreamFormat = FORMAT,
    give_up_seconds: float = PATIENCE_SECONDS,
) -> Iterator[StreamClient]:
    client = StreamClient(format, actor, address, security, give_up_seconds)
    client.connect(incarnation)
    try:
        yield client
    finally:
        client.close()


def exchange(server: RpcServer, client: StreamClient, value: float) -> None:
    """One row of an actor and its answer."""
    client.send(0, row_bytes(value))
    request = wait_for(server.take, "a row", client.receive)
    assert (request.arrays["observation"] == np.float32(value)).all()
    request.answer(answer_bytes(int(value)))
    group, arrays = wait_for(client.receive, "an answer", server.take)
    assert group == 0
    assert (arrays["env_action"] == int(value)).all()


def refusal(server: RpcServer, client: StreamClient) -> str:
    """The message with which the client gives up."""
    with pytest.raises(ConnectionError) as caught:
        wait_for(client.receive, "the refusal", server.take)
    return str(caught.value)


def raw_call(
    server: RpcServer, address: str, messages: list[bytes], token: str | None = SECURITY.token
) -> grpc.StatusCode:
    """Send raw messages on a stream of their own; returns its status."""

    def call() -> grpc.StatusCode:
        metadata = () if token is None else ((TOKEN_HEADER, token),)
        with grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)]) as channel:
            stream = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
                iter(messages), metadata=metadata, timeout=PATIENCE_SECONDS
            )
            try:
                for _ in stream:
                    pass
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        return wait_for(lambda: future.result() if future.done() else None, "the end", server.take)
