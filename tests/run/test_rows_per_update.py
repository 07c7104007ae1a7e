# SPDX-License-Identifier: Apache-2.0
"""What is learned from follows from options and the machine's size, never from how busy it is."""

from __future__ import annotations

import json
import time

import pytest

import veldt
from veldt.architectures import ARCHITECTURES, load
from veldt.environments import EnvironmentFactory
from veldt.families import preset_names
from veldt.options import RunOptions
from veldt.options.fields import flat
from veldt.run import plan as planning
from veldt.run.description import choices
from veldt.run.plan import envs_per_actor, make_plan


def chosen(architecture, env=None, **options):
    env = env or ARCHITECTURES[architecture].example_env
    return choices(make_plan(architecture, RunOptions(env=env, seed=3, **options), {}))


def test_however_slow_an_environment_seems_the_sizes_stay(monkeypatch):
    before = {name: chosen(name, "veldt/Memory-v0") for name in ("impala", "sample_factory")}
    for name in ("monotonic", "perf_counter"):
        real = getattr(time, name)
        monkeypatch.setattr(time, name, lambda real=real: 1_000.0 * real())
    assert {name: chosen(name, "veldt/Memory-v0") for name in before} == before


def test_the_size_of_the_machine_counts_but_not_for_ppos_batch(monkeypatch):
    rows = {}
    for cores in (2, 3, 9):
        monkeypatch.setattr(planning, "usable_cores", lambda count=cores: count)
        found = chosen("sample_factory", "veldt/Memory-v0")
        assert found["num_actors"] == cores - 1
        rows[cores] = found["rows_per_update"]
    assert set(rows.values()) == {2_048}


@pytest.mark.parametrize(
    ("num_actors", "num_learners", "rows"),
    [(1, 1, 640), (3, 1, 640), (4, 1, 2_560), (15, 1, 9_600), (15, 4, 2_560), (6, 2, 640)],
)
def test_impalas_batch_grows_with_its_actors(num_actors, num_learners, rows):
    """One of each once they are many: a learner of small batches had lag 30 with 15 actors."""
    options = RunOptions(env="CartPole-v1", num_actors=num_actors)
    plan = make_plan("impala", options, {"num_learners": num_learners})
    assert plan.rows_per_update() == rows
    alone = make_plan("impala", options, {"batch_trajectories": 2, "num_learners": num_learners})
    assert alone.rows_per_update() == 2 * 640


@pytest.mark.parametrize(
    ("architecture", "env", "num_actors", "width", "rows"),
    [
        ("sample_factory", "CartPole-v1", 1, 32, 2_048),
        ("sample_factory", "CartPole-v1", 3, 16, 3_072),
        ("sample_factory", "CartPole-v1", 15, 16, 15_360),
        ("sample_factory", "Acrobot-v1", 15, 2, 2_048),  # stepped one by one
        ("ppo", "CartPole-v1", 16, 16, 16_384),
        ("sac", "Pendulum-v1", 15, 1, 256),
    ],
)
def test_sizes_grow_with_actors_where_environments_step_as_arrays(
    architecture, env, num_actors, width, rows
):
    found = chosen(architecture, env, num_actors=num_actors)
    assert found["envs_per_actor"] == width
    assert found["rows_per_update"] == rows


@pytest.mark.parametrize("given", [{"num_envs": 30}, {"batch_rows": 2_048}])
def test_sizes_that_were_asked_for_do_not_grow(given):
    plan = make_plan("sample_factory", RunOptions(env="CartPole-v1", num_actors=15), given)
    assert plan.problem.envs_per_actor == 2
    assert plan.rows_per_update() == round(2_048 / 64) * 64


@pytest.mark.parametrize(
    ("architecture", "num_actors", "device", "num_envs", "rows"),
    [
        ("sample_factory", 1, "cpu", 16, 512),
        ("sample_factory", 15, "cpu", 30, 512),
        ("sample_factory", 1, "cuda", 64, 4_096),
        ("sample_factory", 15, "cuda", 240, 4_096),
        ("ppo", 15, "cpu", 15, 480),
        ("ppo", 16, "cuda", 128, 4_096),
    ],
)
def test_ataris_sizes_follow_from_actors_and_device(
    architecture, num_actors, device, num_envs, rows
):
    """A GPU's batch would keep a core busy for most of a minute."""
    module, environment = load(architecture), EnvironmentFactory("ALE/Pong-v5")
    names = preset_names("atari", device=device)
    config = flat(next(module.presets[name] for name in names if name in module.presets))
    options, asks = RunOptions(env="ALE/Pong-v5"), device == "cuda"
    width = envs_per_actor(options, environment, config, num_actors, asks)
    assert num_actors * width == num_envs
    assert config.get("batch_rows", num_envs * config["trajectory_steps"]) == rows


def test_what_was_chosen_is_printed_and_recorded(tmp_path, capsys):
    run_dir = tmp_path / "run"
    result = veldt.train(
        "ppo",
        env="CartPole-v1",
        backend="serial",
        total_env_steps=100,
        evaluation_episodes=0,
        quiet=False,
        run_dir=str(run_dir),
    )
    line = capsys.readouterr().out.splitlines()[0]
    expected = "ppo on vectors: preset vectors, 2 actors x 16 environments, 2,048 rows per update"
    assert line.startswith(expected)
    for file in ("config.json", "result.json"):
        recorded = json.loads((run_dir / file).read_text(encoding="utf-8"))["chosen"]
        assert recorded["family"] == recorded["preset"] == "vectors"
        assert recorded["rows_per_update"] == 2_048
    assert result.chosen["envs_per_actor"] == 16
