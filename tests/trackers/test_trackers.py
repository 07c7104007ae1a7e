# SPDX-License-Identifier: Apache-2.0
"""W&B, MLflow and Prometheus, with their real packages: the same curve after kill -9."""

import json
import signal
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from watched_runs import command_of, is_alive, until, veldt_process

import veldt
from veldt.trackers.child import Trackers, read_state

SMALL = ("--env", "veldt/Stairs-v0", "--backend", "serial", "--evaluation-episodes", "0", "--quiet")


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """W&B writes files only, MLflow into a folder."""
    for name in ("wandb", "mlflow", "prometheus_client", "nicegui"):
        pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def reached(path: Path) -> int:
    """Env steps that both trackers have."""
    states = read_state(path)
    return min(states.get(name, {}).get("env_steps", -1) for name in ("wandb", "mlflow"))


def ids(states: dict) -> dict[str, str]:
    return {name: state["id"] for name, state in states.items()}


def scraped(address: str) -> dict[str, dict[str, float]]:
    """By metric: values by the label `name`, or by nothing."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{address}metrics", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["run"] == "run"
            found.setdefault(sample.name, {})[sample.labels.get("name", "")] = sample.value
    return found


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_run_goes_on_under_the_same_ids(tmp_path, packages):
    path = tmp_path / "run"
    words = ("--trackers", "wandb,mlflow", "--checkpoint-options", "env_steps=4000")
    with veldt_process("train", "impala", *SMALL, *words, "--run-dir", str(path)) as process:
        until(lambda: reached(path) > 0, "both trackers")
        until(lambda: any((path / "checkpoints").glob("checkpoint-*")), "a checkpoint")
        helpers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not any(is_alive(child) for child in helpers), "what ran beside it to end")
    first, known = reached(path), ids(read_state(path))
    total = first + 20_000
    with veldt_process("watch", str(path)) as page:
        address = f"http://{page.stdout.readline().split('http://')[1].split()[0]}"
        before = scraped(address)
        with veldt_process("resume", str(path), "--total-env-steps", str(total)) as process:
            process.wait(120)
        until(lambda: scraped(address)["veldt_env_steps_total"][""] >= total, "the same run")
    assert before["veldt_up"] == {"": 0.0}
    assert before["veldt_info"].keys() == {"is_success", "height", "episode/stairs"}
    assert before["veldt_info"]["height"] == 4.0
    assert 0 < before["veldt_env_steps_total"][""] < total
    assert 0 <= before["veldt_system_memory_percent"][""] <= 100
    assert ids(read_state(path)) == known
    assert reached(path) >= total
    check_mlflow(tmp_path, known["mlflow"], first, total)
    check_wandb(path, known["wandb"], first, total)
    assert not (path / "tensorboard").exists()  # it was not among the trackers


def check_mlflow(folder: Path, identity: str, first: int, total: int) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    run = client.get_run(identity)
    assert run.info.status == "FINISHED"
    assert run.data.params["architecture"] == "impala"
    assert len(client.search_runs([run.info.experiment_id])) == 1
    for name in ("return/mean_100", "info/is_success", "system/cpu_percent", "system/run_cores"):
        steps = [entry.step for entry in client.get_metric_history(identity, name)]
        assert steps == sorted(set(steps)), name
        assert steps[0] < first < steps[-1] >= total


def check_wandb(path: Path, identity: str, first: int, total: int) -> None:
    from wandb_files import history, run_id

    parts = sorted((path / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert [run_id(part) for part in parts] == [identity, identity]
    lines = [line for part in parts for line in history(part)]
    steps = [line["env_steps"] for line in lines]
    assert all(after > before for before, after in pairwise(steps))
    assert steps[0] < first < steps[-1] >= total
    assert lines[-1].keys() >= {"return/mean_100", "info/is_success", "system/memory_percent"}


@pytest.mark.slow
def test_trackers_that_fail_cost_one_warning_each(tmp_path, monkeypatch, packages):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("HOME", str(tmp_path))  # where a key might lie
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    path = tmp_path / "run"
    result = veldt.train(
        "impala", "veldt/Stairs-v0", backend="serial", total_env_steps=3_000,
        evaluation_episodes=0, trackers=("wandb", "mlflow"), run_dir=str(path),
    )  # fmt: skip
    assert result.stopped_by == "env_steps"
    alarms = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    texts = sorted(alarm["text"] for alarm in alarms)
    assert [alarm["sort"] for alarm in alarms] == ["alarm", "alarm"], texts
    assert texts[0].startswith("the tracker mlflow failed, training continues: MlflowException")
    assert texts[1].startswith("the tracker wandb failed, training continues: UsageError")


def sending() -> list[psutil.Process]:
    """The trackers' process of this one."""
    children = psutil.Process().children()
    return [child for child in children if "veldt.trackers" in str(command_of(child))]


@pytest.mark.slow
def test_a_process_that_dies_is_one_warning(tmp_path):
    notes: list[str] = []
    trackers = Trackers(["mlflow"])
    with trackers.running(tmp_path, notes.append):
        until(sending, "the process")  # the kernel shows its command a moment after its start
        sending()[0].kill()
        until(lambda: trackers.poll() or notes, "the warning")
        trackers.poll()
    assert len(notes) == 1
    assert notes[0].startswith("the trackers' process ended with -9, training continues")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_one_line_before_anything_starts(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(veldt.ConfigurationError) as refusal:
        veldt.train("impala", "CartPole-v1", trackers=(name,), run_dir=str(tmp_path / "run"))
    assert str(refusal.value) == (
        f"the tracker {name} needs an extra:"
        f' pip install "veldt[{"tensorboard" if name == "tensorboard" else "trackers"}]"'
    )
    assert not (tmp_path / "run").exists()
