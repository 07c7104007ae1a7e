# SPDX-License-Identifier: Apache-2.0
"""A run directory as the page sees it: finished, running, killed, resumed."""

from __future__ import annotations

import json

import pytest
from watched_runs import SMALL, until, veldt_process

import veldt
from veldt.dashboard.metric_charts import METRIC_CHARTS, metric_of, sizes
from veldt.dashboard.reading import (
    CURVE_POINTS,
    Point,
    RunReader,
    _thinned,
    rate_of,
    runs_in,
)
from veldt.errors import ConfigurationError
from veldt.telemetry.counters import traffic_name
from veldt.telemetry.record import EVENTS_FILE, STATUS_FILE, TOPOLOGY_FILE


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    result = veldt.train(
        "apex",
        env="CartPole-v1",
        backend="serial",
        envs_per_actor=4,
        total_env_steps=3000,
        min_replay_transitions=200,
        evaluation_episodes=2,
        run_dir=str(run_dir),
    )
    return run_dir, result


def test_a_finished_run_shows_its_result(finished):
    run_dir, result = finished
    view = RunReader(run_dir).read()
    assert view.state == "ended"
    assert view.result == result
    assert view.status["env_steps"] == result.env_steps
    assert view.status["updates"] == result.updates
    assert view.status["policy_lag"] == result.policy_lag
    assert view.curve[-1].env_steps == result.env_steps
    assert view.restarts == 0
    assert view.option("env") == "CartPole-v1"


def test_every_metric_that_is_there_has_its_chart(finished):
    path = finished[0] / "metrics.jsonl"
    written = path.read_text(encoding="utf-8")
    last = json.loads(written.splitlines()[-1])
    extra = {"system/gpu_0_percent": 91.0, "info/is_success": 0.5}
    try:
        path.write_text(written + json.dumps(last | extra) + "\n", encoding="utf-8")
        view = RunReader(finished[0]).read()
    finally:
        path.write_text(written, encoding="utf-8")
    drawn = {each.title: each.options(view) for each in METRIC_CHARTS}
    lines = {
        title: [one["name"] for one in each["series"]] for title, each in drawn.items() if each
    }
    assert lines == {
        "Loss": ["q"],
        "TD error and estimated value": ["td", "value"],
        "Gradient norm": ["gradient norm"],
        "Episode length: mean of the last 100": ["mean length"],
        "CPU, memory and GPU: percent in use": ["cpu", "memory", "gpu 0"],
        "Told by the environment at the end of episodes": ["is success"],
    }
    assert metric_of("Loss")(view.curve[-1]) == last["counter/loss.q"]
    assert sizes(view)["envs per actor"] == "4"
    assert sizes(view)["batch size"] == str(view.config["config"]["batch_size"])


def test_a_folder_of_runs_is_its_runs(finished, tmp_path):
    run_dir = finished[0]
    assert runs_in([run_dir.parent]) == {"run": run_dir}
    other = tmp_path / "run"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert list(runs_in([run_dir, tmp_path]).values()) == [run_dir, other]
    assert list(runs_in([run_dir, tmp_path])) == [str(run_dir), str(other)], "names were the same"


def test_what_passes_an_end_passes_the_other(finished):
    """Over the whole run: what was sent was taken, but for what still lies in the queue."""
    view = RunReader(finished[0]).read()
    assert view.topology["channels"]["trajectories"]["slots"] == 2
    edges = [("actor", "replay", "trajectories"), ("replay", "learner", "batches")]
    for writer, reader, queue in edges:
        sent = rate_of(view, writer, traffic_name(queue, is_writing=True))
        taken = rate_of(view, reader, traffic_name(queue, is_writing=False))
        assert sent == pytest.approx(taken, rel=0.1)
        assert sent > 0
    updates = rate_of(view, "learner", "updates")
    assert rate_of(view, "learner", traffic_name("batches", is_writing=False)) == updates
    assert rate_of(view, "learner", "no such counter") is None


def test_busy_shares_are_of_every_node(finished):
    view = RunReader(finished[0]).read()
    assert set(view.status["nodes"]) == {"actor-0", "replay-0", "learner-0"}
    assert all(0 <= node["busy"] <= 1 for node in view.status["nodes"].values())
    assert [node["restarts"] for node in view.of_kind("learner")] == [0]


def test_only_a_run_can_be_watched(tmp_path):
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        RunReader(tmp_path)


def test_a_running_run_moves_and_a_killed_one_is_lost(tmp_path):
    run_dir = tmp_path / "run"
    with veldt_process("train", "impala", *SMALL, "--run-dir", str(run_dir)) as process:
        until((run_dir / TOPOLOGY_FILE).exists, "the start")
        reader = RunReader(run_dir)
        until(lambda: reader.read().status.get("updates", 0) > 0, "the first update")
        before = reader.read()
        assert before.state == "running"
        assert before.result is None
        until(lambda: reader.read().status["env_steps"] > before.status["env_steps"], "steps")
        until(lambda: len(reader.read().curve) > len(before.curve), "the curve")
        after = reader.read()
        assert rate_of(after, "actor", traffic_name("trajectories", is_writing=True)) > 0
        assert after.topology is before.topology, "read again although it did not change"
    assert RunReader(run_dir).read().state == "lost"
    assert process.returncode != 0


def test_a_resumed_run_takes_the_curve_back_to_its_checkpoint(finished, tmp_path):
    reader = RunReader(finished[0])
    steps = [point.env_steps for point in reader.read().curve]
    with open(finished[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": 0.0, "env_steps": 10}) + "\n")
        file.write('{"torn')
    assert [point.env_steps for point in reader.read().curve] == [s for s in steps if s <= 10] + [
        10
    ]


def test_a_resumed_run_is_running_again_although_a_result_is_there(finished):
    path = finished[0] / STATUS_FILE
    ended = path.read_text(encoding="utf-8")
    status = json.loads(ended) | {"state": "running"}
    try:
        path.write_text(json.dumps(status), encoding="utf-8")
        view = RunReader(finished[0]).read()
    finally:
        path.write_text(ended, encoding="utf-8")
    assert (view.state, view.result) == ("running", None)


def test_events_are_read_as_they_come(finished):
    reader = RunReader(finished[0])
    assert reader.read().events == []
    with open(finished[0] / EVENTS_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": 1.0, "sort": "alarm", "text": "look"}) + "\n")
    assert [event["text"] for event in reader.read().events] == ["look"]
    assert [event["text"] for event in reader.read().events] == ["look"]


@pytest.mark.parametrize("length", [0, 1, CURVE_POINTS, CURVE_POINTS + 1, 10 * CURVE_POINTS + 3])
def test_a_long_curve_is_thinned_and_keeps_its_end(length):
    points = [Point(float(number), number, None, 0.0) for number in range(length)]
    kept = _thinned(points)
    assert len(kept) <= CURVE_POINTS
    assert kept[-1:] == points[-1:]
    assert len(kept) > min(length, CURVE_POINTS) / 2 - 1
