# SPDX-License-Identifier: Apache-2.0
"""A server of 64 actors is killed with all their questions in flight: each of them is answered by
its successor, and no transition gets into two trajectories."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from streams import FORMAT, SECURITY, WIDTH, answer_bytes, calling, row_bytes

import veldt
from veldt.roles.stream_inference import TrajectoryAssembler
from veldt.types import Field, Layout, Slot, slots_over
from veldt.wire.protocol import StreamServicer
from veldt.wire.transport import RpcServer

CLIENTS, STEPS, KILLS = 64, 3, 3
SLOT = Layout.of(
    observation=Field((STEPS + 1, WIDTH, 3), "float32", join_axis=1),
    first=Field((STEPS + 1, WIDTH), "bool", join_axis=1),
    reward=Field((STEPS + 1, WIDTH), "float32", join_axis=1),
    provenance=Field((1, 5), "int64"),
)


class Journal:
    """Writes down every transition that is handed over: actor and number of its first row."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        buffer = np.zeros(SLOT.nbytes * CLIENTS, np.uint8)
        self._free = slots_over(SLOT, buffer, CLIENTS)

    def reserve(self) -> Slot:
        return self._free.pop()

    def commit(self, slot: Slot) -> None:
        rows = slot["observation"][:, 0, 0].astype(int)
        assert (np.diff(rows) == 1).all(), "rows that do not belong together"
        actor = slot["provenance"][0, 0]
        lines = "".join(f"{actor} {row}\n" for row in rows[:-1])
        os.write(self._file, lines.encode())
        self._free.append(slot)


def serve(address: str, journal: str) -> None:
    """Answer each row with the number in it, until killed."""
    server = RpcServer(StreamServicer(FORMAT, CLIENTS, 1), address, SECURITY)
    assembler = TrajectoryAssembler(Journal(journal), CLIENTS)
    while True:
        row = server.take()
        if row is None:
            time.sleep(0.0005)
            continue
        if assembler.is_new_connection(row.client, row):
            assembler.begin(row.client, row)
        assembler.receive(row.client, row)
        assembler.place(row.client, row)
        row.answer(answer_bytes(int(row.arrays["observation"][0, 0])))


PROGRAM = "import sys; from test_killed_server import serve; serve(sys.argv[1], sys.argv[2])"


def start(address: str, journal: Path) -> subprocess.Popen:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(veldt.__file__).parent.parent)])
    command = [sys.executable, "-c", PROGRAM, address, str(journal)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_every_question_is_answered_once_and_no_transition_handed_over_twice(tmp_path):
    address, journal = f"unix:{tmp_path}/socket", tmp_path / "journal"
    server = start(address, journal)
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(calling(address, actor)) for actor in range(CLIENTS)]
            asked = [0] * CLIENTS
            for client in clients:
                client.send(0, row_bytes(0.0))

            def answer_of_each(at_least: int) -> None:
                """Ask and ask again until every actor was answered `at_least` times more."""
                goals, began = [number + at_least for number in asked], time.monotonic()
                while any(done < goal for done, goal in zip(asked, goals, strict=True)):
                    assert time.monotonic() < began + 60, "an actor waits for ever"
                    idle = True
                    for actor, client in enumerate(clients):
                        found = client.receive()
                        if found is None:
                            continue
                        idle = False
                        assert (found[1]["env_action"] == asked[actor]).all()
                        asked[actor] += 1
                        client.send(0, row_bytes(float(asked[actor])))
                    if idle:  # the server, which is starting, needs the processor more
                        time.sleep(0.005)

            answer_of_each(10)
            for _ in range(KILLS):
                server.send_signal(signal.SIGKILL)
                server.wait()
                server = start(address, journal)
                answer_of_each(10)
            assert {client.connections for client in clients} == {KILLS + 1}
    finally:
        server.kill()
        server.wait()
    committed = Counter(journal.read_text().split("\n")[:-1])
    twice = sum(count > 1 for count in committed.values())
    assert twice == 0
    assert len(committed) > CLIENTS * 10
