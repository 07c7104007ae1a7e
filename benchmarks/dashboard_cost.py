# SPDX-License-Identifier: Apache-2.0
"""What the live page costs: trained steps/s with `--dashboard` over those without.

While the page is served, a client without a browser is connected to it and receives every update.
Runs alternate, so that a slow minute of the machine hits both; medians count.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import measuring

TARGET_RATIO = 0.98
_START_SECONDS, _CONNECT_SECONDS = 6.0, 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def visit(port: int) -> int:
    """Open the page as a browser does and stay until it goes away; the updates received."""
    import socketio

    client, received = socketio.Client(reconnection=False, request_timeout=30), 0

    @client.on("update")
    def count(_: Any) -> None:
        nonlocal received
        received += 1

    deadline = time.monotonic() + _CONNECT_SECONDS
    while not client.connected:
        try:
            _connect(client, f"http://127.0.0.1:{port}")
        except (OSError, socketio.exceptions.ConnectionError):  # it is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    client.wait()
    return received


def _connect(client: Any, address: str) -> None:
    page = urllib.request.urlopen(address, timeout=30).read().decode()
    found = re.search(r"""['"]?client_id['"]?: ['"]([0-9a-f-]{36})""", page)
    assert found, "the page names no client"
    identity = f"client_id={found[1]}&document_id=visitor&tab_id=visitor&old_tab_id=null"
    client.connect(
        f"{address}/?{identity}&next_message_id=0&implicit_handshake=true",
        socketio_path="/_nicegui_ws/socket.io",
        transports=["websocket"],
    )


def trained_steps_per_second(seconds: float, with_page: bool) -> tuple[float, int]:
    """One run, and how many updates its page's visitor received."""
    port, visitor = free_port(), None
    if with_page:
        command = [sys.executable, __file__, "--visit", str(port)]
        visitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        training = measuring.train(
            "impala",
            300,
            env="CartPole-v1",
            backend="process",
            max_seconds=_START_SECONDS + seconds,
            evaluation_episodes=0,
            **({"dashboard": port} if with_page else {}),
        )
        received = int(visitor.communicate(timeout=30)[0]) if visitor else 0
    finally:
        if visitor:
            visitor.kill()
            visitor.wait()
    if with_page and not received:
        raise RuntimeError("nobody looked at the page: the measurement would say nothing")
    return training.trained_steps_per_second, received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="measured part of a run")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--no-save", action="store_true", help="only print")
    parser.add_argument("--visit", type=int, metavar="PORT", help="be the visitor of a page")
    given = parser.parse_args()
    if given.visit is not None:
        print(visit(given.visit))
        return
    rows, without_page, with_page = [], [], []
    for pair in range(given.pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        rates = {shown: trained_steps_per_second(given.seconds, shown) for shown in order}
        without_page.append(rates[False][0])
        with_page.append(rates[True][0])
        rows.append((f"pair {pair + 1}", without_page[-1], with_page[-1], rates[True][1]))
    ratio = measuring.median(with_page) / measuring.median(without_page)
    measuring.print_table(("trained steps/s", "without", "with the page", "updates seen"), rows)
    print(f"ratio of medians {ratio:.3f}, target {TARGET_RATIO}")
    if not given.no_save:
        payload = {
            "machine": measuring.machine(),
            "env": "CartPole-v1",
            "architecture": "impala",
            "seconds": given.seconds,
            "without_page": without_page,
            "with_page": with_page,
            "updates_seen": [row[3] for row in rows],
            "ratio": ratio,
            "target_ratio": TARGET_RATIO,
        }
        print(json.dumps({"saved": str(measuring.save("dashboard_cost", payload))}))


if __name__ == "__main__":
    main()
