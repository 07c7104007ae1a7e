# SPDX-License-Identifier: Apache-2.0
"""Streams over gRPC: honest actors are served whatever others send; broken streams come back."""

import shutil
import threading

import grpc
import pytest
from streams import (
    FORMAT,
    SECURITY,
    WIDTH,
    calling,
    exchange,
    free_port,
    raw_call,
    refusal,
    serving,
    wait_for,
)

from veldt.errors import ConfigurationError
from veldt.types import Field, Layout
from veldt.wire.protocol import StreamFormat, StreamServicer
from veldt.wire.security import Security, is_on_this_machine, with_certificate
from veldt.wire.transport import RpcServer

OPEN = FORMAT.encode_open(1, 0)
_TOO_LARGE = b"x" * (FORMAT.max_request_bytes + 1)
Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("messages", "token", "reason", "code"),
    [
        ([OPEN], None, "unauthenticated", Code.UNAUTHENTICATED),
        ([b"\xff" * 40], SECURITY.token, "malformed", Code.INVALID_ARGUMENT),
        ([OPEN, _TOO_LARGE], SECURITY.token, "malformed", Code.INVALID_ARGUMENT),
        ([OPEN, bytes(64 << 20)], SECURITY.token, None, Code.RESOURCE_EXHAUSTED),  # not even held
    ],
)
def test_bad_messages_are_refused_and_counted_while_an_honest_actor_goes_on(
    tmp_path, messages, token, reason, code
):
    with serving(tmp_path) as (server, address), calling(address) as client:
        exchange(server, client, 1.0)
        for count in (1, 2):
            assert raw_call(server, address, messages, token) == code
            assert server.refused == ({reason: count} if reason else {})
            exchange(server, client, 1.0 + count)
        assert client.connections == 1


def test_more_streams_than_actors_could_need_are_refused(tmp_path):
    with serving(tmp_path, num_clients=1) as (server, address), calling(address) as client:
        exchange(server, client, 1.0)
        idle = [grpc.insecure_channel(address) for _ in range(20)]
        hold = threading.Event()
        for channel in idle:
            stream = channel.stream_stream("/veldt.wire.CentralInference/Infer")
            stream(
                iter(lambda: hold.wait() and b"", b""), metadata=(("veldt-token", SECURITY.token),)
            )
        exchange(server, client, 2.0)
        hold.set()
        for channel in idle:
            channel.close()


def test_an_actor_that_is_refused_says_why_instead_of_trying_for_ever(tmp_path):
    wider = Layout((("observation", Field((WIDTH, 9), "float32")), *FORMAT.request.fields[1:]))
    other = StreamFormat(wider, FORMAT.reply)
    with serving(tmp_path) as (server, address):
        with calling(address, format=other) as client:
            assert "wrong_format" in refusal(server, client)
        with calling(address, security=Security("wrong")) as client:
            assert "unknown token" in refusal(server, client)


def test_an_actor_whose_server_never_comes_gives_up(tmp_path, monkeypatch):
    monkeypatch.setattr("veldt.wire.transport._CONNECT_SECONDS", 1.0)
    address = f"unix:{tmp_path}/nobody"
    with calling(address, give_up_seconds=0.0) as client, pytest.raises(ConnectionError):
        wait_for(client.receive, "the client to give up")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.org"])
def test_an_unsafe_address_refuses_to_start(host):
    with pytest.raises(ConfigurationError, match="token and TLS"):
        RpcServer(StreamServicer(FORMAT, 1, 1), f"{host}:0", SECURITY)
    assert not is_on_this_machine(f"{host}:0")


def test_no_token_admits_nobody_and_none_is_ever_shown():
    assert not Security("").admits([("veldt-token", "")])
    assert not SECURITY.admits([("other", SECURITY.token)])
    assert SECURITY.admits([("veldt-token", SECURITY.token)])
    assert SECURITY.token not in repr(SECURITY)
    assert len({Security().token for _ in range(10)}) == 10


@pytest.fixture(scope="module")
def tls() -> Security:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    return with_certificate(SECURITY)


def test_tls_serves_those_who_know_the_certificate_and_nobody_else(tmp_path, tls, monkeypatch):
    port = free_port()
    address = f"127.0.0.1:{port}"
    with serving(tmp_path, f"0.0.0.0:{port}", security=tls) as (server, _):
        with calling(address, security=tls.for_clients()) as client:
            exchange(server, client, 1.0)
            assert tls.for_clients().key is None
            assert raw_call(server, address, [OPEN]) == Code.UNAVAILABLE  # plain text
            exchange(server, client, 2.0)
        stranger = with_certificate(SECURITY).for_clients()
        monkeypatch.setattr("veldt.wire.transport._CONNECT_SECONDS", 2.0)
        with calling(address, security=stranger, give_up_seconds=0.0) as client:
            assert "no stream" in refusal(server, client)
