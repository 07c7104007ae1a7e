# SPDX-License-Identifier: Apache-2.0
"""A real S3 server (moto's, in a process of its own), and a proxy that loses, delays, cuts and
refuses requests."""

import http.client
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_SECONDS = 60.0
SECRET = "a-secret-that-no-file-may-hold"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server():
    """The address of a server with an empty bucket called "bucket"."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                put = urllib.request.Request(f"{address}/bucket", method="PUT")
                urllib.request.urlopen(put, timeout=5).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield address
    finally:
        server.kill()
        server.wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Silent, because tests kill clients."""


FAULTS = ("error", "drop", "lost answer", "cut answer", "cut request", "delay")


class FlakyProxy:
    """Forwards requests to `target`, with one of `faults` for a share `rate` of them.

    "hang" never answers; `counts` has the number of each fault."""

    def __init__(self, target: str, seed: int = 0) -> None:
        self.target = target.removeprefix("http://")
        self.faults: tuple[str, ...] = ()
        self.rate = 0.0
        self.counts: dict[str, int] = {}
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._ended = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def _pass(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _fault(self) -> str | None:
        with self._lock:
            if not self.faults or self._random.random() >= self.rate:
                return None
            fault = self._random.choice(self.faults)
            self.counts[fault] = self.counts.get(fault, 0) + 1
            return fault

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        fault = self._fault()
        body = _body(request)
        if fault == "hang":
            self._ended.wait(60)
        if fault in ("hang", "drop"):
            request.close_connection = True
            return
        if fault == "delay":
            self._ended.wait(0.3)
        if fault == "error":
            return _answer(request, 500, {}, b"<Error><Code>InternalError</Code></Error>")
        if fault == "cut request":
            body = body[: len(body) // 2]
        try:
            status, headers, content = self._ask(request, body)
        except (OSError, http.client.HTTPException):
            request.close_connection = True
            return
        if fault == "lost answer":
            request.close_connection = True
            return
        _answer(request, status, headers, content, cut=fault == "cut answer")

    def _ask(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict, bytes]:
        server = http.client.HTTPConnection(self.target, timeout=30)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("transfer-encoding", "content-length", "expect")
        }
        if body or request.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        server.request(request.command, request.path, body, headers)
        answer = server.getresponse()
        content = answer.read()
        kept = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "date", "server")
        }
        server.close()
        return answer.status, kept, content


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if "chunked" in request.headers.get("Transfer-Encoding", "").lower():
        content = b""
        while size := int(request.rfile.readline().split(b";")[0], 16):
            content += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
        return content
    return request.rfile.read(int(request.headers.get("Content-Length", 0)))


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: dict, content: bytes, cut: bool = False
) -> None:
    request.send_response(status)
    lengths = [name for name in headers if name.lower() == "content-length"]
    for name, value in headers.items():
        request.send_header(name, value)
    if not lengths:
        request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if cut:
        content = content[: len(content) // 2]
        request.close_connection = True
    if request.command != "HEAD":
        request.wfile.write(content)
