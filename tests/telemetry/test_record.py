# SPDX-License-Identifier: Apache-2.0
"""Files of a run: topology, status, events, metrics."""

import json
import os
from dataclasses import dataclass

import numpy as np
import pytest

from veldt.role import Role
from veldt.telemetry.log_files import METRICS_FILE
from veldt.telemetry.record import EVENTS_FILE, STATUS_FILE, TOPOLOGY_FILE, RunRecord
from veldt.topology import Topology
from veldt.types import Layout


@dataclass(eq=False)
class Tiny(Role):
    """A role that is never opened."""

    data: object
    weights: object


@pytest.fixture
def topology():
    made = Topology(None, architecture="tiny")
    queues = [made.queue(f"data-{index}", Layout({}), num_slots=4) for index in range(2)]
    board = made.board("weights", np.zeros(3))
    actors = [made.add("actor", Tiny(queue.sink, board.source())) for queue in queues]
    learner = made.add("learner", Tiny([queue.source() for queue in queues], board.sink))
    made.colocate(actors[1], learner)
    return made


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_status_has_rates_fills_busy_shares_and_restarts(topology, tmp_path, fake_run):
    fake = fake_run("actor-0", "actor-1", "learner-0")
    fake.update(**{"data-0": 0.0, "data-1": 0.0})
    record = RunRecord(tmp_path, topology)
    record.begin()
    found = read(tmp_path / TOPOLOGY_FILE)
    assert found["processes"] == [["actor-0"], ["actor-1", "learner-0"]]
    assert found["channels"]["data"] == {"sort": "queue", "count": 2, "slots": 8}
    assert read(tmp_path / STATUS_FILE)["state"] == "starting"
    record.tick(fake.run, {})
    for name, sent in (("actor-0", 30), ("actor-1", 10)):
        fake.nodes[name].counter("sent.data").add(sent)
        fake.nodes[name].gauge("epsilon").set(0.5)
        fake.spend(name, "step", 1.0)
        fake.spend(name, "wait", 1.0)
    fake.nodes["learner-0"].counter("updates").add(6)
    fake.nodes["learner-0"].lag(np.array([0, 0, 2]))
    fake.update(2.0, **{"data-0": 0.5, "data-1": 0.25})
    record.tick(fake.run, {"actor-1+learner-0": 3})
    record.close()
    status = read(tmp_path / STATUS_FILE)
    assert status["state"] == "running"
    assert status["process"]["pid"] == os.getpid()
    assert status["rates"] == {"actor": {"sent.data": 20.0}, "learner": {"updates": 3.0}}
    assert status["queues"] == {"data": 3}
    assert status["policy_lag"]["histogram"] == [2, 0, 1]
    assert {name: node["restarts"] for name, node in status["nodes"].items()} == {
        "actor-0": 0,
        "actor-1": 3,
        "learner-0": 3,
    }
    assert status["nodes"]["actor-0"]["busy"] == pytest.approx(0.5)
    assert status["nodes"]["learner-0"]["busy"] is None


def test_the_last_status_has_means_since_the_run_settled(topology, tmp_path, fake_run):
    fake = fake_run("actor-0", "actor-1", "learner-0")
    record = RunRecord(tmp_path, topology)
    for updates in (0, 4, 10, 20, 30, 40, 50, 60):
        fake.nodes["learner-0"].counter("updates").set(updates)
        fake.update(1.0)
        record.tick(fake.run, {})
    assert read(tmp_path / STATUS_FILE)["rates"]["learner"]["updates"] == 10.0
    record.tick(fake.run, {}, ended=True)
    record.close()
    status = read(tmp_path / STATUS_FILE)
    assert status["state"] == "ended"
    assert status["rates"]["learner"]["updates"] == pytest.approx(fake.run.steady_rate("updates"))
    assert status["env_steps_per_second"] == pytest.approx(fake.run.steady_rate())


def test_notes_are_shown_and_kept(topology, tmp_path):
    shown: list[str] = []
    (tmp_path / EVENTS_FILE).write_text('{"text": "old"}\n{"torn', encoding="utf-8")
    record = RunRecord(tmp_path, topology, shown.append)
    record.note("alarm", "actor-0 is odd")
    record.keep("end", "interrupted")
    record.close()
    lines = (tmp_path / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["old", "actor-0 is odd", "interrupted"]
    assert shown == ["actor-0 is odd"]


def test_a_directory_that_is_gone_is_one_line_per_file(topology, tmp_path, fake_run, capsys):
    fake = fake_run("actor-0", "actor-1", "learner-0")
    fake.update()
    record = RunRecord(tmp_path / "gone", topology)
    (tmp_path / "gone").write_text("a file where the directory was")
    record.begin()
    record.tick(fake.run, {})
    record.tick(fake.run, {})
    record.note("node", "text")
    record.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [
        TOPOLOGY_FILE, STATUS_FILE, METRICS_FILE, "TensorBoard", EVENTS_FILE
    ]  # fmt: skip
    assert all("failed, training continues" in line for line in lines)
