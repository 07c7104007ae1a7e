# SPDX-License-Identifier: Apache-2.0
"""Options in files, and the command that repeats a run."""

import json
import shlex
from pathlib import Path

import gymnasium
import pytest
from torch import nn

import veldt
from veldt.cli import main as cli
from veldt.run.config_files import read_config

SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}
TOML = """
architecture = "impala"
env = "CartPole-v1"
backend = "serial"
num-actors = 1
envs_per_actor = 4
evaluation_episodes = 0
total_env_steps = 2e2
network_options = {hidden_sizes = [8, 8]}
wrappers = {time_limit = "none"}
learning_rate = 1e-3
"""


def make_pole(length: float = 0.5, name: str = "pole") -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.length = length
    return env


def own_network(spec) -> nn.Module:
    return nn.Linear(4, 8)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(run: str) -> dict:
    return json.loads((Path(run) / "result.json").read_text())


def test_toml_json_and_a_runs_config_say_the_same(here, capsys):
    Path("a.toml").write_text(TOML)
    flat = read_config("a.toml").checked("impala")
    Path("a.json").write_text(json.dumps({"architecture": "impala", **flat}))
    assert read_config("a.json").checked("impala") == flat
    assert flat["total_env_steps"] == 200
    assert flat["network_options"] == {"hidden_sizes": (8, 8)}
    assert flat["wrappers"] == {"time_limit": None}

    assert cli.main(["train", "--config", "a.toml", "--run-dir", "first", "--seed", "3"]) == 0
    command = saved("first")["command"]
    assert f"repeat it: {command}" in capsys.readouterr().out
    config = json.loads(Path("first/config.json").read_text())
    assert (config["options"]["seed"], config["config"]["learning_rate"]) == (3, 1e-3)
    assert config["command"] == command

    repeated = [*shlex.split(command)[1:], "--run-dir", "second", "--quiet"]
    assert cli.main(repeated) == 0
    other = veldt.train(config="first/config.json", run_dir="third", seed=4)
    assert saved("first")["parameters_sha256"] == saved("second")["parameters_sha256"]
    assert other.parameters_sha256 != saved("first")["parameters_sha256"]


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("a.toml", "learning_rat = 1.0", "a.toml: unknown option 'learning_rat'; did you mean"),
        ("a.toml", "hidden_sizes = [8]", "now a key of network_options: --network-options hidden"),
        ("a.toml", "learning_rate = -1.0", "a.toml: learning_rate is -1.0; use 0 to 100"),
        ("a.toml", 'seed = "x"', "a.toml: seed is 'x', which this option cannot be"),
        ("a.toml", "seed = = 1", "a.toml is not valid toml"),
        ("a.json", "[1]", "a.json: there must be options by name"),
        ("a.ini", "seed=1", "is none of .toml, .json"),
        ("b/a.toml", None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(name, content, remedy, capsys):
    if content is not None:
        Path(name).write_text(content)
    before = set(Path.cwd().rglob("*"))
    assert cli.main(["train", "impala", "--env", "CartPole-v1", "--config", name]) == 2
    printed = capsys.readouterr()
    assert remedy in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert set(Path.cwd().rglob("*")) == before


def test_what_a_file_does_not_say_is_asked_for(capsys):
    Path("a.toml").write_text('env = "CartPole-v1"')
    Path("b.toml").write_text("seed = 1")
    assert cli.main(["train", "--config", "a.toml"]) == 2
    assert cli.main(["train", "impala", "--config", "b.toml"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "name an architecture" in first
    assert "name an environment with --env" in second
    with pytest.raises(veldt.ConfigurationError, match=r"architecture = in a\.toml"):
        veldt.train(config="a.toml")
    options = {"options": {"env": "veldt:leduc"}, "config": {}, "architecture": "impala"}
    Path("config.json").write_text(json.dumps(options))
    with pytest.raises(veldt.ConfigurationError, match="names every option"):
        veldt.train(config="config.json", preset="paper")


def test_the_command_repeats_a_run_that_was_made_in_python():
    made = {"env_options": {"length": 0.7, "name": "a,b=c"}, "network": own_network, **SMALL}
    first = veldt.train("impala", make_pole, total_env_steps=100, run_dir="a run", **made)
    assert first.command == "veldt train --config 'a run/config.json'"
    again = [*shlex.split(first.command)[1:], "--run-dir", "b", "--quiet"]
    assert cli.main(again) == 0
    assert saved("b")["parameters_sha256"] == first.parameters_sha256


def test_the_same_command_continues_a_run_on_a_module_next_to_its_directory(here, monkeypatch):
    Path("mine.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(str(here))
    command = ["train", "impala", "--env", "mine:make", "--run-dir", "run", "--quiet"]
    command += ["--backend", "serial", "--num-actors", "1", "--evaluation-episodes", "0"]
    for steps in ("200", "400"):
        assert cli.main([*command, "--total-env-steps", steps]) == 0
        assert saved("run")["env_steps"] >= int(steps)
    assert cli.main([*command, "--total-env-steps", "600", "--preset", "paper"]) == 2
