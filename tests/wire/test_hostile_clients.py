# SPDX-License-Identifier: Apache-2.0
"""Hostile clients: fuzzed frames, wrong tokens, an expired certificate."""

import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from streams import (
    FORMAT,
    SECURITY,
    answer_bytes,
    calling,
    exchange,
    free_port,
    raw_call,
    refusal,
    row_bytes,
    serving,
    wait_for,
)

from veldt.types import Field, Layout
from veldt.wire.protocol import METHOD, SERVICE, StreamFormat
from veldt.wire.security import TOKEN_HEADER, Security

STREAMS = int(os.environ.get("VELDT_FUZZED_FRAMES", 18_000)) // 9
OPEN = FORMAT.encode_open(1, 0)
OTHER = StreamFormat(
    Layout((("observation", Field((4, 3), "float64")), *FORMAT.request.fields[1:])), FORMAT.reply
)


def fuzzed(draw: random.Random) -> list[bytes]:
    """The frames of one hostile stream. None of them ends in an honest question."""
    row = bytearray(FORMAT.encode_row(0, row_bytes(1.0)))
    kind = draw.randrange(8)
    if kind == 0:
        return [draw.randbytes(draw.randrange(300))]
    if kind == 1:
        return [OPEN, bytes(row[: draw.randrange(len(row))])]
    if kind == 2:
        for _ in range(4):
            row[draw.randrange(8)] ^= 1 << draw.randrange(8)
        return [OPEN, bytes(row), bytes(row)]
    if kind == 3:
        return [OTHER.encode_open(1, 0)]
    if kind == 4:
        value = draw.choice([float("nan"), float("inf"), float("-inf")])
        return [OPEN, FORMAT.encode_row(0, row_bytes(value))]
    if kind == 5:
        return [OPEN, *[FORMAT.encode_row(0, row_bytes())] * 3]
    if kind == 6:
        return [OPEN, OPEN]
    return [OPEN, FORMAT.encode_row(draw.randrange(1, 2**64), row_bytes())]


def hostile(address: str, seed: int, count: int, codes: list[grpc.StatusCode]) -> None:
    draw = random.Random(seed)
    metadata = ((TOKEN_HEADER, SECURITY.token),)
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        for _ in range(count):
            try:
                for _ in call(iter(fuzzed(draw)), metadata=metadata, timeout=20.0):
                    pass
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())


@pytest.mark.slow
def test_an_honest_actor_is_served_while_others_send_fuzzed_frames(tmp_path):
    codes: list[grpc.StatusCode] = []
    with serving(tmp_path) as (server, address), calling(address) as client:

        def answer_the_honest_one() -> None:
            request = server.take()
            if request is not None and request.client == 0:
                request.answer(answer_bytes(1))

        process = psutil.Process()
        before = process.memory_info().rss
        with ThreadPoolExecutor(4) as pool:
            each = STREAMS // 4
            work = [pool.submit(hostile, address, seed, each, codes) for seed in range(4)]
            while not all(future.done() for future in work):
                client.send(0, row_bytes(1.0))
                wait_for(client.receive, "an answer", answer_the_honest_one)
            for future in work:
                future.result()
        grown = (process.memory_info().rss - before) / 2**20
        exchange(server, client, 5.0)
        assert client.connections == 1
        reasons = {"malformed", "not_finite", "wrong_format", "out_of_turn"}
        assert set(server.refused) >= reasons
    allowed = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "ABORTED", "OK", "UNAVAILABLE"}
    assert {code.name for code in codes} <= allowed
    assert sum(code is grpc.StatusCode.INVALID_ARGUMENT for code in codes) > 0.6 * len(codes)
    assert grown < 50


CA = """[ca]
default_ca=c
[c]
database=index
serial=serial
new_certs_dir=.
default_md=sha256
policy=p
x509_extensions=e
[p]
commonName=supplied
[e]
subjectAltName=DNS:veldt
"""


def expired(directory: Path) -> Security:
    """A certificate that was good for a day, years ago."""
    (directory / "config").write_text(CA)
    (directory / "index").touch()
    (directory / "serial").write_text("01\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key"]
    dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    files = ["-config", "config", "-keyfile", "key", "-in", "request", "-out", "certificate"]
    for command in (
        ["req", "-new", *key, "-subj", "/CN=veldt", "-out", "request"],
        ["ca", "-batch", "-selfsign", "-notext", *files, *dates],
    ):
        subprocess.run(["openssl", *command], cwd=directory, check=True, capture_output=True)
    read = (directory / "certificate").read_bytes(), (directory / "key").read_bytes()
    return Security(SECURITY.token, *read)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_who_is_not_let_in(tmp_path, monkeypatch):
    """Without a token, with that of another run, with an expired certificate."""
    monkeypatch.setattr("veldt.wire.transport._CONNECT_SECONDS", 2.0)
    plain = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, plain) as (server, _), calling(plain) as client:
        for token in (None, "", Security().token, SECURITY.token[:-1], SECURITY.token + "x"):
            assert raw_call(server, plain, [OPEN], token) == grpc.StatusCode.UNAUTHENTICATED
        exchange(server, client, 1.0)
    old, address = expired(tmp_path), f"127.0.0.1:{free_port()}"
    with (
        serving(tmp_path, address, security=old) as (server, _),
        calling(address, security=old.for_clients(), give_up_seconds=0.0) as client,
    ):
        assert "no stream" in refusal(server, client)
