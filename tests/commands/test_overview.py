# SPDX-License-Identifier: Apache-2.0
"""`veldt runs`, `info`, `envs` and `train --dry-run`; the same options wherever a run is read."""

import json

import pytest

import veldt
from veldt.cli.main import main
from veldt.cli.parsers import command_parser

SHORT = {"backend": "serial", "evaluation_episodes": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs, one that learned and one that did not, beside another program's file."""
    folder = tmp_path_factory.mktemp("runs")
    for name, steps in (("learned", 1500), ("short", 20)):
        veldt.train("a2c", "CartPole-v1", total_env_steps=steps, run_dir=folder / name, **SHORT)
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("[]")
    return folder


def test_runs_are_listed_with_state_and_score(folder, capsys):
    assert main(["runs", str(folder), "--json"]) == 0
    learned, short = json.loads(capsys.readouterr().out)
    assert (learned["state"], learned["env_steps"] >= 1500) == ("ended by env_steps", True)
    assert learned["score"] > 5
    assert (short["state"], short["score"]) == ("ended by env_steps, 0 updates", None)
    (folder / "short" / "result.json").rename(folder / "short" / "gone.json")
    status = json.loads((folder / "short" / "status.json").read_text())
    status |= {"state": "running", "process": {**status["process"], "pid": 2**22 + 1}}
    (folder / "short" / "status.json").write_text(json.dumps(status))
    assert main(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["run", *map(str, sorted(folder.glob("[ls]*")))]
    assert "killed" in lines[2]
    assert main(["runs", str(folder / "nowhere")]) == 2


def test_info_names_checkpoints_and_the_next_commands(folder, capsys):
    assert main(["info", str(folder / "learned")]) == 0
    shown = capsys.readouterr().out
    assert "a2c on CartPole-v1, backend serial, seed 0" in shown
    assert "checkpoints at env steps: 1," in shown
    assert "look at" in shown
    assert main(["info", str(folder / "other")]) == 2


def test_environments_are_listed(capsys):
    assert main(["envs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"CartPole-v1", "veldt:kuhn", "veldt/Memory-v0"} <= set(found)
    assert main(["envs", "cartpole"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("CartPole")


def test_a_dry_run_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ppo", "--env", "CartPole-v1", "--dry-run", "--max-seconds", "9"]) == 0
    shown = capsys.readouterr().out
    assert "preset vectors" in shown
    assert "ends at max_seconds 9.0; nothing was started" in shown
    assert not list(tmp_path.iterdir())
    assert main(["train", "ppo", "--env", "CartPole-v1", "--dry-run", "--gamma", "9"]) == 2


@pytest.mark.parametrize("command", ["evaluate", "play", "export", "serve"])
def test_every_command_that_reads_a_policy_takes_the_same_options(command):
    words = ["run", "--policy", "1", "--seed", "3", "--trust-code"]
    out = ["--out", "file"] if command == "export" else []
    given = command_parser(command).parse([*words, *out])
    expected = {"policy": 1, "seed": 3, "trust_code": True, "checkpoint": "best"}
    assert expected.items() <= given.items()
