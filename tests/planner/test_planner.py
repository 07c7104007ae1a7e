# SPDX-License-Identifier: Apache-2.0
"""The planner: its simulator against known queues, real topologies, bands, the command."""

import json

import pytest

from veldt.architectures import ARCHITECTURES
from veldt.cli.main import main
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.planner.command import Planner, PlanOptions, Prediction, _print, trials_of
from veldt.planner.simulation import Engine, Work
from veldt.planner.times import Times, spans
from veldt.run.plan import make_plan

STEP, LEARN = 1e-3, 4e-3
ACTING = {"step": [STEP], "infer": [STEP / 2], "hand_over": [1e-5], "pull": [1e-5]}
LEARNING = {"learn": [LEARN], "publish": [1e-5], "hand_over": [1e-5]}
SAMPLES = {
    **{f"{kind}/{stage}": v for kind in ("actor", "agent") for stage, v in ACTING.items()},
    **{f"{kind}/{stage}": v for kind in ("learner", "trainer") for stage, v in LEARNING.items()},
    "replay/add": [1e-4],
    "replay/draw": [1e-4],
}
SERVERS = dict.fromkeys(
    ("inference/infer", "policy_worker/infer", "predictor/infer"), (0.0004, 1e-05)
)
TIMES = Times(SAMPLES, fits=SERVERS)


def planning(architecture, env="CartPole-v1", own=None, **options):
    def plan_of(actors):
        given = RunOptions(env=env, num_actors=actors, backend="process", device="cpu", **options)
        return make_plan(architecture, given, own or {})

    return plan_of


def planner(architecture, times=TIMES, env="CartPole-v1", own=None, **options):
    return Planner(planning(architecture, env, own, **options), times, home_cores=2)


def test_cores_are_shared_and_the_urgent_go_first():
    engine, done = Engine(cores=2), []

    def process(name, urgency):
        yield Work(1.0, name, urgency)
        done.append((name, engine.now))

    for name, urgency in (("a", 1), ("b", 1), ("c", 1), ("d", 0)):
        engine.spawn(process(name, urgency))
    engine.run(10.0, 100)
    assert done == [("d", 1.0), ("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert engine.busy == dict.fromkeys("abcd", 1.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_its_own_model(architecture):
    env = ARCHITECTURES[architecture].example_env
    actors = 1 if architecture == "dqn" else 2
    found = planner(architecture, env=env, envs_per_actor=8).predict(actors)
    assert found.env_steps_per_second > 0
    assert found.low < found.env_steps_per_second < found.high
    if architecture in ("a2c", "ppo"):
        assert found.policy_lag == 0.0  # actors wait at a barrier
    if architecture == "sebulba":
        assert found.policy_lag == pytest.approx(1.0, abs=0.1)


def test_one_actor_is_as_fast_as_its_own_time_and_many_as_the_learner():
    impala = planner("impala", envs_per_actor=8, own={"batch_trajectories": 1})
    one, many = impala.predict(1), impala.predict(32)
    rows = 8 * 10
    assert one.env_steps_per_second == pytest.approx(8 / (1.5 * STEP), rel=0.05)
    assert many.env_steps_per_second == pytest.approx(rows / (LEARN + 2e-5), rel=0.05)
    assert many.policy_lag > one.policy_lag
    assert "learner" in many.bottleneck


def test_a_move_of_a_game_is_one_env_step_in_a_plan_too():
    game = planner("impala", env="veldt:leduc", envs_per_actor=8).predict(1)
    assert game.env_steps_per_second == pytest.approx(8 / 2 / (1.5 * STEP), rel=0.05)


def test_larger_batches_take_longer_to_learn_from():
    alone = planning("impala", envs_per_actor=8)(1).rows_per_update()
    per_row = {"learner/learn": (0.0, LEARN / alone)}
    proportional = Times(SAMPLES, fits=SERVERS | per_row)
    impala = planner("impala", proportional, envs_per_actor=8)
    found = impala.predict(64, cores=100)
    assert planning("impala", envs_per_actor=8)(64).rows_per_update() == 64 * alone
    assert found.env_steps_per_second == pytest.approx(alone / LEARN, rel=0.05)
    assert found.bottleneck.startswith("the learner")


@pytest.mark.parametrize(
    ("architecture", "actors", "larger"),
    [
        # Two actors fill the same batch as one, eight do not.
        ("impala", 8, {"batch_trajectories": 8, "queue_trajectories": 16}),
        ("seed_rl", 8, {"batch_trajectories": 8}),  # a trajectory of each actor
        ("a2c", 8, {"envs_per_actor": 32}),  # always one of each actor: four times as wide
        ("apex", 8, None),  # always of one size
    ],
)
def test_calibration_sees_large_batches_where_they_grow(architecture, actors, larger):
    plan_of = planning(architecture, envs_per_actor=8)
    trials = trials_of(architecture, actors, plan_of)
    assert [dict(trial.options) for trial in trials if trial.options] == (
        [larger] if larger else []
    )
    if larger:
        assert trials[-1].rows == plan_of(actors).rows_per_update() > 2 * trials[-2].rows


def learner_trace(*stages):
    """A timeline of one learner that did these (stage, seconds) one after the other."""
    events, now = [], 0.0
    for name, seconds in stages:
        about = {"ph": "X", "tid": 0, "cat": "learner", "name": name}
        events.append({**about, "ts": now * 1e6, "dur": seconds * 1e6})
        now += seconds
    return {"traceEvents": events, "otherData": {"seconds": now}}


def test_an_update_after_a_wait_says_nothing_about_a_learner_that_never_waits():
    cold, warm, wait = ("learn", 3.0), ("learn", 2.0), ("wait", 1.0)
    in_bursts = spans(learner_trace(*[wait, cold, warm, ("publish", 0.1), warm] * 10))
    assert set(in_bursts["learner/learn"]) == {2.0}
    one_by_one = spans(learner_trace(*[wait, cold, wait, cold, warm] * 10))
    assert set(one_by_one["learner/learn"]) == {2.0, 3.0}


def test_sleeping_environments_need_few_cores():
    asleep = Times(SAMPLES, 0.05, fits=SERVERS)
    impala = planner("impala", asleep, envs_per_actor=1)
    few, many = impala.predict(1, cores=2), impala.predict(2, cores=2)
    assert many.env_steps_per_second == pytest.approx(2 * few.env_steps_per_second, rel=0.1)


def test_bands_widen_beyond_what_was_measured():
    measured = [{"actors": 1, "env_steps_per_second": 5000.0, "policy_lag": 1.0}]
    impala = planner("impala", Times(SAMPLES, 1.0, measured, SERVERS), envs_per_actor=8)
    near, far = impala.predict(2), impala.predict(256)
    width = {each.actors: each.high / each.env_steps_per_second - 1 for each in (near, far)}
    assert width[256] > 3 * width[2]


def test_the_command_prints_json_and_words(tmp_path, capsys):
    path = tmp_path / "times.json"
    TIMES.save(path)
    words = ["plan", "impala", "--env", "CartPole-v1", "--actors", "1,4", "--gpu-times", str(path)]
    assert main([*words, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["actors"] for entry in entries] == [1, 4]
    wanted = {"env_steps_per_second", "low", "high", "policy_lag", "bottleneck"}
    assert wanted <= entries[0].keys()
    assert main(words) == 0
    assert "waits for" in capsys.readouterr().out


def test_words_never_advise_actors_that_cost_speed(capsys):
    rates = ((1, 900.0), (4, 400.0))
    found = [Prediction(n, 2, rate, rate, rate, 0.0, "the actors: add actors") for n, rate in rates]
    _print("impala", found, PlanOptions("CartPole-v1"), {})
    assert "fastest with 1 actors; with 4 it loses 56%." in capsys.readouterr().out


def test_bad_input_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="--save-times writes one"):
        Times.load(str(tmp_path / "bad.json"))
    assert main(["plan", "impala", "--env", "CartPole-v1", "--actors", "0"]) == 2
    assert main(["plan", "impola", "--env", "CartPole-v1"]) == 2
    assert "did you mean impala" in capsys.readouterr().err
