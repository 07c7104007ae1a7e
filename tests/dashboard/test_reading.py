# SPDX-License-Identifier: Apache-2.0
"""A run directory as the page reads it: finished, running, killed, resumed."""

import json

import pytest
from watched_runs import SMALL, until, veldt_process

import veldt
from veldt.dashboard.charts import curve
from veldt.dashboard.reading import CURVE_POINTS, RunReader, thinned
from veldt.telemetry.log_files import EVALUATION, EVALUATION_ENV_STEPS
from veldt.telemetry.record import STATUS_FILE, TOPOLOGY_FILE


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    short = {"backend": "serial", "total_env_steps": 1000, "evaluation_episodes": 2}
    return run_dir, veldt.train("impala", "CartPole-v1", run_dir=run_dir, **short)


def test_a_finished_run_shows_its_result(finished):
    run_dir, result = finished
    view = RunReader(run_dir).read()
    assert view.state == "ended"
    assert view.result == result
    assert view.status["env_steps"] == view.curve[-1]["env_steps"] == result.env_steps
    assert view.status["updates"] == result.updates
    assert view.status["policy_lag"] == result.policy_lag
    assert view.restarts == 0
    evaluation = [view.evaluations[0][EVALUATION_ENV_STEPS], view.evaluations[0][EVALUATION]]
    assert curve(view)["series"][-1]["data"] == [evaluation]
    assert view.option("env") == "CartPole-v1"
    assert set(view.status["nodes"]) == {"actor-0", "learner-0"}
    assert all(0 <= node["busy"] <= 1 for node in view.status["nodes"].values())
    assert [node["restarts"] for node in view.nodes_of("learner")] == [0]


@pytest.mark.slow
def test_a_running_run_moves_and_a_killed_one_is_lost(tmp_path):
    run_dir = tmp_path / "run"
    with veldt_process("train", "impala", *SMALL, "--run-dir", str(run_dir)) as process:
        until((run_dir / TOPOLOGY_FILE).exists, "the start")
        reader = RunReader(run_dir)
        until(lambda: reader.read().status.get("updates", 0) > 0, "the first update")
        before = reader.read()
        assert before.state == "running"
        assert before.result is None
        until(lambda: len(reader.read().curve) > len(before.curve), "the curve")
        after = reader.read()
        assert after.status["env_steps"] > before.status["env_steps"]
    assert RunReader(run_dir).read().state == "lost"
    assert process.returncode != 0


def test_a_resumed_run_continues_the_curve_from_its_checkpoint(finished):
    reader = RunReader(finished[0])
    steps = [point["env_steps"] for point in reader.read().curve]
    with open(finished[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": 0.0, "env_steps": 10}) + "\n")
        file.write('{"torn')
    expected = [s for s in steps if s <= 10] + [10]
    assert [point["env_steps"] for point in reader.read().curve] == expected
    status = json.loads((finished[0] / STATUS_FILE).read_text()) | {"state": "running"}
    (finished[0] / STATUS_FILE).write_text(json.dumps(status))
    view = reader.read()
    assert (view.state, view.result) == ("running", None), "although a result is there"


def test_curves_are_thinned_to_their_end():
    for count in (0, CURVE_POINTS, 10 * CURVE_POINTS + 3):
        lines = [{"env_steps": number} for number in range(count)]
        kept = thinned(lines)
        assert len(kept) <= CURVE_POINTS
        assert kept[-1:] == lines[-1:]
