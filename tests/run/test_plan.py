# SPDX-License-Identifier: Apache-2.0
"""Sizes, devices, threads and reward clips follow from options and the machine's size."""

import json
import time

import gymnasium
import numpy as np
import pytest
import torch

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.errors import ConfigurationError
from veldt.optimizers import Schedule
from veldt.options import RunOptions
from veldt.options.fields import flat
from veldt.run import plan as planning
from veldt.run.description import choices, choices_line
from veldt.run.external import with_places
from veldt.run.plan import make_plan
from veldt.telemetry.log_files import metric_rows


def plan(architecture, own=None, **options):
    return make_plan(architecture, RunOptions(**{"env": "CartPole-v1", **options}), own or {})


def chosen(architecture, env=None, **options):
    return choices(
        plan(architecture, env=env or ARCHITECTURES[architecture].example_env, **options)
    )


def test_the_number_of_cores_counts_but_not_for_a_ppo_batch(monkeypatch):
    rows = {}
    for cores in (2, 9):
        monkeypatch.setattr(planning, "usable_cores", lambda count=cores: count)
        found = chosen("sample_factory", "veldt/Memory-v0")
        assert found["num_actors"] == cores - 1
        rows[cores] = found["rows_per_update"]
    assert set(rows.values()) == {2_048}


@pytest.mark.parametrize(
    ("num_actors", "num_learners", "rows"), [(3, 1, 640), (4, 1, 2_560), (15, 4, 2_560)]
)
def test_the_batch_of_impala_grows_with_its_actors(num_actors, num_learners, rows):
    """One trajectory of each: a learner of small batches had lag 30 with 15 actors."""
    found = plan("impala", {"num_learners": num_learners}, num_actors=num_actors)
    assert found.rows_per_update() == rows
    own = {"batch_trajectories": 2, "num_learners": num_learners}
    assert plan("impala", own, num_actors=num_actors).rows_per_update() == 2 * 640


@pytest.mark.parametrize(
    ("architecture", "env", "num_actors", "width", "rows"),
    [
        ("sample_factory", "CartPole-v1", 1, 32, 2_048),
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
    assert (found["envs_per_actor"], found["rows_per_update"]) == (width, rows)
    if architecture == "sample_factory":  # sizes that are given do not grow
        assert plan(architecture, {"num_envs": 30}, num_actors=15).problem.envs_per_actor == 2
        with pytest.raises(ConfigurationError, match="among 1 actors of 2 groups; use 8"):
            plan(architecture, {"num_envs": 7}, num_actors=1)


PUBLISHED_ROWS = {
    "a3c": 5, "async_q": 5, "ga3c": 5, "a2c": 80, "ppo": 1_024, "impala": 640, "seed_rl": 3_200,
    "sample_factory": 2_048, "dqn": 32, "gorila": 32, "apex": 512, "sac": 256, "td3": 100,
    "r2d2": 64 * (40 + 80),
}  # fmt: skip


@pytest.mark.parametrize("architecture", PUBLISHED_ROWS)
def test_updates_of_paper_presets_have_the_published_rows(architecture):
    """With environments that step as arrays, and with slow ones."""
    fewer = {"r2d2": {"replay_sequences": 200, "min_replay_sequences": 100}}
    envs = ("Pendulum-v1",) if architecture in ("sac", "td3") else ("CartPole-v1", "ALE/Pong-v5")
    for env in envs:
        options = {"env": env, "preset": "paper", "num_actors": 1 if architecture == "dqn" else 4}
        found = plan(architecture, fewer.get(architecture), **options)
        assert found.rows_per_update() == PUBLISHED_ROWS[architecture], env


def test_clients_have_64_places_between_them():
    clients = with_places(RunOptions("external:127.0.0.1:5000", envs_per_actor=6))
    assert clients.num_actors == 64 // 6


def test_choices_are_printed_and_recorded(tmp_path, capsys):
    options = {"backend": "serial", "total_env_steps": 100, "evaluation_episodes": 0}
    veldt.train("ppo", "CartPole-v1", quiet=False, run_dir=str(tmp_path / "run"), **options)
    line = capsys.readouterr().out.splitlines()[0]
    expected = "ppo on vectors: preset vectors, 2 actors x 16 environments, 2,048 rows per update"
    assert line.startswith(expected)
    for file in ("config.json", "result.json"):
        recorded = json.loads((tmp_path / "run" / file).read_text(encoding="utf-8"))["chosen"]
        assert recorded["family"] == recorded["preset"] == "vectors"
        assert recorded["rows_per_update"] == 2_048


class Fallen(veldt.Callback):
    """Ends a run whose learning rate has fallen a little."""

    def on_progress(self, metrics):
        return metrics.get("counter/learning_rate_scale", 1.0) < 0.92


def test_rates_follow_the_time_where_no_number_of_steps_is_given(tmp_path):
    """What is told is of the last update, which a busy machine may delay but never hasten."""
    run, limit, before = tmp_path / "run", 60.0, time.time()
    result = veldt.train("ppo", "CartPole-v1", max_seconds=limit, num_actors=1,
                         optimizer_options={"decay_learning_rate": True}, callbacks=[Fallen()],
                         evaluation_episodes=0, run_dir=str(run))  # fmt: skip
    assert result.stopped_by == "callback"
    rows = [row for row in metric_rows(run) if "counter/learning_rate_scale" in row]
    scales = [row["counter/learning_rate_scale"] for row in rows]
    assert scales == sorted(scales, reverse=True)
    for row, scale in zip(rows, scales, strict=True):
        assert scale >= 1.0 - (row["time"] - before) / limit - 0.01
    assert result.chosen["schedule"] == "learning rate over 60 s"


def test_a_league_follows_the_end_that_was_given():
    for options, expected in (
        ({"max_seconds": 60.0}, " over 60 s"),
        ({"max_seconds": 60.0, "total_env_steps": 1000}, " over 1,000 env steps"),
        ({"max_seconds": 60.0, "backend": "serial"}, None),  # the clock must not decide
    ):
        found = make_plan("league", RunOptions("veldt:kuhn", **options), {})
        learner = next(node.role for node in found.topology.nodes if node.kind == "learner")
        if expected is None:
            assert learner.scheduled() == []
            continue
        assert choices(found)["schedule"] == "learning rate and entropy coefficient" + expected
    middle = Schedule(seconds=60.0, began=time.time() - 30.0)
    assert middle.passed(0) == pytest.approx(0.5, abs=0.1)
    assert [Schedule(10).passed(steps) for steps in (0, 5, 20)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("architecture", "own", "device", "line"),
    [
        ("impala", {}, "cuda:7", "device is cuda:7, which is not on this machine"),
        ("impala", {}, "tpu", "use auto, cpu, cuda, cuda:1"),
        ("seed_rl", {}, "cpu,cpu,cpu", "then one for the inference server"),
        ("impala", {"num_learners": 3}, "cpu,cpu", "2 devices, but impala has 3"),
        ("ga3c", {}, "cpu,cpu,cpu,cpu,cpu", "shares one model on one device"),
    ],
)
def test_devices_that_do_not_fit_are_refused_in_one_line(architecture, own, device, line):
    with pytest.raises(ConfigurationError) as caught:
        plan(architecture, own, backend="serial", device=device)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_learner_and_server_has_the_device_that_was_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = plan("impala", {"num_learners": 2}, backend="serial", device="cuda:1,cpu")
    assert [node.role.device() for node in found.topology.of("learner")] == ["cuda:1", "cpu"]
    found = plan("seed_rl", backend="serial", device="cuda:0,cpu")
    devices = {node.kind: node.role.device() for node in found.topology.nodes}
    assert (devices["learner"], devices["inference"]) == ("cuda:0", "cpu")


def test_the_learner_has_as_many_threads_as_the_environment_variable_says(monkeypatch):
    monkeypatch.setattr("veldt.run.plan.usable_cores", lambda: 2)
    for value, threads in (("8", 8), ("9", 8), ("none", 1)):
        monkeypatch.setattr("veldt.resources.THREADS_ASKED", value)
        assert plan("impala", backend="process").problem.compute.threads == threads
        serial = plan("impala", backend="serial").problem
        assert (serial.compute.threads, serial.shape.image_precision) == (1, "float32")


@pytest.mark.parametrize(
    ("architecture", "env", "threads"),
    [("ppo", "veldt/Catch-v0", 8), ("ppo", "CartPole-v1", 1), ("impala", "veldt/Catch-v0", 1)],
)
def test_a_learner_that_actors_wait_for_has_their_cores(architecture, env, threads, monkeypatch):
    """Only for networks of images, and never on serial, which must not depend on the machine."""
    monkeypatch.setattr("veldt.run.plan.usable_cores", lambda: 16)
    monkeypatch.setattr("veldt.resources.THREADS_ASKED", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the fork server sets it before the plan
    sizes = {"env": env, "num_actors": 1}
    assert plan(architecture, backend="process", **sizes).problem.compute.threads == threads
    assert plan(architecture, backend="serial", **sizes).problem.compute.threads == 1


class Pictures(gymnasium.Env):
    """Large images that are not Atari."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((64, 64, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((64, 64, 3), np.uint8), 10.0, True, False, {}


@pytest.mark.parametrize(
    ("architecture", "own", "env", "wrappers", "clip"),
    [
        ("impala", {}, "ALE/Pong-v5", {}, 1.0),
        ("impala", {}, "ALE/Pong-v5", {"reward_clip": 3.0}, 3.0),
        ("r2d2", {"replay_sequences": 1000}, "ALE/Pong-v5", {}, None),
        ("impala", {}, Pictures, {}, None),
    ],
)
def test_rewards_are_clipped_in_atari_games_only(architecture, own, env, wrappers, clip):
    planned = plan(architecture, own, env=env, backend="serial", wrappers=wrappers)
    assert planned.problem.environment.reward_clip == clip
    assert planned.problem.shape.encoder == ("small_conv" if architecture == "impala" else "auto")
    again = plan(architecture, flat(planned.config), env=env, backend="serial")  # of a GPU's run
    assert again.problem.shape.encoder == "auto"


def test_environments_that_actors_cannot_share_evenly_are_refused():
    with pytest.raises(ConfigurationError, match=r"num_envs 7 does not split .* use 8, or"):
        plan("ppo", {"num_envs": 7}, num_actors=2)


class FloatPictures(Pictures):
    """The same scaled to 0 to 1, as other libraries want them."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (64, 64, 3), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros((64, 64, 3), np.float32), {}


def test_floats_that_look_like_an_image_are_named():
    line, remedy = choices_line(plan("a2c", env=Pictures)), "give images as uint8"
    assert "a2c on large images: preset" in line
    assert remedy not in line
    line = choices_line(plan("a2c", env=FloatPictures))
    assert f"observation of 64 x 64 x 3 float32 is read as numbers: {remedy}" in line
