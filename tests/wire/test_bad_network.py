# SPDX-License-Identifier: Apache-2.0
"""A network that swallows and resets: streams over a proxy that misbehaves on demand."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from streams import answer_bytes, calling, exchange, free_port, row_bytes, serving, wait_for

MOST_DETECTION_SECONDS = 15.0 + 5.0  # keepalive and its timeout, and a connection after it


class Proxy:
    """Forwards bytes between one listening port and `target`, in threads of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._swallowed: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        # Nobody may be blocked in a read when the socket is to be reset: it would stay open.
        source.settimeout(0.02)
        with suppress(OSError):
            while data := _received(source):
                if source not in self._swallowed:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def go_silent(self) -> None:
        """What exists stays open and carries nothing any more, as when a cable is cut."""
        self._swallowed |= {end for pair in self._pairs for end in pair}

    def reset(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.close()

    def close(self) -> None:
        self._listener.close()
        self.reset()


def _received(source: socket.socket) -> bytes:
    while True:
        with suppress(TimeoutError):
            return source.recv(1 << 16)


@contextmanager
def behind_a_proxy(tmp_path) -> Iterator[tuple]:
    port = free_port()
    with (
        serving(tmp_path, f"127.0.0.1:{port}") as (server, _),
        closing(Proxy(port)) as proxy,
        calling(f"127.0.0.1:{proxy.port}") as client,
    ):
        exchange(server, client, 1.0)
        yield server, proxy, client


@pytest.mark.parametrize("lost", ["question", "answer"])
def test_a_reset_in_midstream_loses_no_answer_and_doubles_none(tmp_path, lost):
    """A lost answer is where duplicates come from: the server has done the work, and is asked
    again. It begins anew with what it is asked on the new stream."""
    with behind_a_proxy(tmp_path) as (server, proxy, client):
        resets = 5
        for number in range(resets):
            value = 10.0 + number
            client.send(0, row_bytes(value))
            if lost == "answer":
                request = wait_for(server.take, "a row", client.receive)
                proxy.reset()
                request.answer(answer_bytes(int(value)))
            else:
                proxy.reset()
            while (found := client.receive()) is None:
                request = server.take()  # on whichever stream it comes
                if request is not None:
                    request.answer(answer_bytes(int(request.arrays["observation"][0, 0])))
            assert found[1]["env_action"][0] == value
            for _ in range(20):
                assert client.receive() is None, "an answer came twice"
                assert server.take() is None, "a row came twice"
                time.sleep(0.001)
        assert client.connections == resets + 1


@pytest.mark.slow
def test_a_peer_that_went_silent_is_noticed(tmp_path):
    """The connection stays open and carries nothing. Keepalive finds out; both ends go on over a
    new one."""
    with behind_a_proxy(tmp_path) as (server, proxy, client):
        proxy.go_silent()
        began = time.monotonic()
        client.send(0, row_bytes(2.0))
        request = wait_for(server.take, "the row on a new connection", client.receive)
        seconds = time.monotonic() - began
        assert request.arrays["observation"][0, 0] == 2.0
        request.answer(answer_bytes(2))
        wait_for(client.receive, "its answer", server.take)
        assert client.connections == 2
        assert seconds < MOST_DETECTION_SECONDS
