# SPDX-License-Identifier: Apache-2.0
"""`veldt compare` end to end: the report, and what a second call does after a kill."""

import csv
import json
import re
import subprocess
import time

import numpy as np
import psutil
import pytest
from commands import start

import veldt
from veldt.cli import main as cli
from veldt.compare import runs
from veldt.compare.records import collect, existing
from veldt.compare.report import _cell
from veldt.compare.runs import Comparison, compare, prepare_output_dir
from veldt.compare.statistics import estimate
from veldt.errors import ConfigurationError
from veldt.files import held_folder
from veldt.telemetry.result import RunResult

pytest.importorskip("matplotlib")

TINY = (
    *("compare", "--env", "CartPole-v1", "--architectures", "impala,dqn", "--seeds", "1"),
    *("--total-env-steps", "1500", "--backend", "serial", "--envs-per-actor", "4"),
    *("--evaluation-episodes", "2"),
)
COMPARISON = Comparison("CartPole-v1", "out", ("impala", "dqn"), 2, total_env_steps=100)


@pytest.mark.slow
def test_a_second_call_does_not_repeat_finished_runs(tmp_path):
    """A comparison is killed during its second run."""
    out = tmp_path / "out"
    first = out / "runs" / "impala-seed0" / "result.json"
    process = start(tmp_path, *TINY, "--out", str(out), stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 90
        while not (out / "runs" / "dqn-seed0.log").exists() and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        for each in (*psutil.Process(process.pid).children(), process):
            each.kill()
        text = process.communicate()[0]
    assert first.exists(), text
    assert not (out / "report.html").exists()
    content, changed = first.read_bytes(), first.stat().st_mtime_ns
    process = start(tmp_path, *TINY, "--out", str(out), stderr=subprocess.STDOUT)
    text = process.communicate(timeout=110)[0]
    assert process.returncode == 0, text
    assert (first.read_bytes(), first.stat().st_mtime_ns) == (content, changed)
    assert "impala seed 0: finished before" in text
    assert RunResult.load(out / "runs" / "dqn-seed0" / "result.json").env_steps >= 1500


@pytest.mark.slow
def test_the_report_is_complete_and_needs_no_network(tmp_path):
    out = tmp_path / "out"
    comparison = Comparison(
        "CartPole-v1", str(out), ("impala", "dqn"), 1, total_env_steps=1500, backend="serial",
        envs_per_actor=4, evaluation_episodes=2,
    )  # fmt: skip
    assert compare(comparison) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    titles = ("Method, time, score", "Learning curves and policy lag", "Costs and waiting",
              "Machine", "Commands")  # fmt: skip
    for title in titles:
        assert title in page
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\'\s>)]+)', page)
    assert links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    assert "veldt train dqn --env CartPole-v1" in page
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    with open(out / "results.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["architecture"], line["seed"]) for line in lines] == [
        ("impala", "0"),
        ("dqn", "0"),
    ]
    assert float(lines[1]["replay_ratio"]) > 2 > float(lines[0]["replay_ratio"]) > 0.5
    costs = json.loads((out / "evidence.json").read_text())["systems"]
    assert costs["impala"]["bytes_up_per_env_step"] > 0
    (run,) = collect(runs.tasks(comparison, ["impala"], out))["impala"]
    seconds, _ = run.curve("seconds")
    assert 0 < seconds[0] < seconds[-1] == pytest.approx(run.result.wall_seconds)


def fake_result(task: runs.RunTask, stopped_by: str) -> None:
    task.run_dir.mkdir(parents=True)
    result = RunResult(task.architecture, "CartPole-v1", "serial", task.seed, stopped_by=stopped_by)
    result.save(task.run_dir / "result.json")


def test_only_a_run_that_ended_well_is_finished(tmp_path):
    first, second, third, fourth = runs.tasks(COMPARISON, ["impala", "dqn"], tmp_path)
    fake_result(first, "env_steps")
    fake_result(second, "interrupt")
    third.run_dir.mkdir(parents=True)
    (third.run_dir / "result.json").write_text('{"architecture": "imp')
    assert runs.finished(first) is not None
    assert [runs.finished(task) for task in (second, third, fourth)] == [None] * 3


def test_contestants_have_options_of_their_own(tmp_path):
    named = ("ppo", "ppo --learning-rate 1e-3")
    comparison = Comparison("CartPole-v1", "o", ("a2c",), 1, total_env_steps=100, contestants=named)
    assert comparison.names == ("a2c", *named)
    assert Comparison("CartPole-v1", "o", contestants=named, max_seconds=1.0).names == named
    *_, task = runs.tasks(comparison, comparison.names, tmp_path)
    assert task.arguments[-4:] == [str(task.run_dir), "--learning-rate", "1e-3", "--quiet"]
    assert task.run_dir.name == "ppo---learning-rate-1e-3-seed0"
    wrong = ["--env", "CartPole-v1", "--out", "o", "--max-seconds", "1"]
    assert cli.main(["compare", *wrong, "--contestant", "ppo --learning-rat 1"]) == 2


def test_runs_that_exist_are_grouped_by_the_options_in_which_they_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [{"seed": 0}, {"seed": 1}, {"epochs": 2, "wrappers": {"time_limit": 99}}]
    for number, given in enumerate(made):
        veldt.train("ppo", "CartPole-v1", backend="serial", num_actors=1, total_env_steps=2100,
                    evaluation_episodes=1, run_dir=tmp_path / str(number), **given)  # fmt: skip
    found = existing([str(tmp_path / str(number)) for number in range(3)])
    assert {name: len(group) for name, group in found.items()} == {
        "ppo epochs=4 wrappers time_limit=null": 2,
        "ppo epochs=2 wrappers time_limit=99": 1,
    }
    # One batch of 2,048 rows, learned from four times or twice.
    assert [round(group[0].replay_ratio) for group in found.values()] == [4, 2]
    for name, begins in (("curves.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype")):
        assert cli.main(["plot", *map(str, sorted(tmp_path.glob("?"))), "--out", name]) == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    height = int.from_bytes((tmp_path / "curves.png").read_bytes()[20:24], "big")
    assert height == 2 * 420, "one evaluation is no curve, and has no panel"
    assert cli.main(["plot", str(tmp_path / "0"), "--out", "curves.txt"]) == 2
    with pytest.raises(ConfigurationError, match="holds no run"):
        existing([str(tmp_path)])


def test_a_value_and_its_range_are_apart():
    two, three = estimate(np.array([1.0, 2.0])), estimate(np.array([1.0, 2.0, 4.0]))
    assert _cell(two, 1, 2) == ("1.5", "1.0 to 2.0")
    value, interval = _cell(three, 1, 3)
    assert (value, interval[0]) == ("2.2", "[")


def test_moved_aside_is_kept(tmp_path):
    run_dir = tmp_path / "impala-seed0"
    for content in ("a", "b"):
        run_dir.mkdir()
        (run_dir / "config.json").write_text(content)
        with (
            held_folder(run_dir, "run", "--out"),
            pytest.raises(ConfigurationError, match="in use"),
        ):
            runs.move_aside(run_dir)
        runs.move_aside(run_dir)
    kept = sorted(tmp_path.glob("impala-seed0.unfinished-*/config.json"))
    assert [path.read_text() for path in kept] == ["a", "b"]
    assert not run_dir.exists()


def test_runs_of_other_conditions_are_not_mixed(tmp_path):
    def comparison(**changes):
        given = {"env": "CartPole-v1", "out": str(tmp_path), "total_env_steps": 100}
        return Comparison(**{**given, **changes})

    prepare_output_dir(comparison(architectures=("a2c",)))
    prepare_output_dir(comparison(architectures=("impala",), seeds=9))
    with pytest.raises(ConfigurationError, match="total_env_steps 100, not 200"):
        prepare_output_dir(comparison(total_env_steps=200))
    assert json.loads((tmp_path / "compare.json").read_text())["total_env_steps"] == 100


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--total-env-steps", "9"), "--out"),
        (("--out", "o"), "--max-seconds or --total-env-steps"),
        (("--out", "o", "--total-env-steps", "9", "--seeds", "0"), "use 1 to"),
        (("--out", "o", "--max-seconds", "9", "--architectures", "dqn,dqn"), "have the same name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path, monkeypatch, capsys, arguments, remedy
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", "--env", "CartPole-v1", *arguments]) == 2
    assert remedy in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
