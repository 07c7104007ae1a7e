# SPDX-License-Identifier: Apache-2.0
"""Whole runs on the serial backend: the same bits, the right lag, ratios and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.errors import ConfigurationError
from veldt.roles.learner import Learner

TINY = {
    "env": "CartPole-v1",
    "backend": "serial",
    "num_actors": 2,
    "envs_per_actor": 4,
    "trajectory_steps": 5,
    "total_env_steps": 800,
    "evaluation_episodes": 0,
    "network_options": {"hidden_sizes": (16,)},
}
LSTM = {"recurrent": "lstm", "network_options": {"hidden_sizes": (16,), "recurrent_size": 8}}
PAST = {
    "recurrent": "gru",
    "network_options": {**LSTM["network_options"], "last_action_and_reward": True},
}
REPLAY = {
    "min_replay_transitions": 200,
    "batch_size": 32,
    "total_env_steps": 1_500,
    "trajectory_steps": 4,
}
BOX = {"env": "Pendulum-v1", **REPLAY}
SEQUENCES = {
    "burn_in_steps": 5,
    "unroll_steps": 10,
    "batch_sequences": 4,
    "min_replay_sequences": 8,
    "total_env_steps": 1_200,
    "network_options": LSTM["network_options"],
}


def train(tmp_path, architecture, **options):
    run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    return veldt.train(architecture, **{**TINY, **options}, run_dir=str(run_dir))


SOON = {"annealing_window_seconds": 0.1, "annealing_warm_up_seconds": 0.1}
WORKERS = {"num_policy_workers": 2, "min_requests": 2}
VARIANTS = [
    ("a3c", {}),
    ("a3c", {"optimizer_options": {"shared_statistics": False}}),
    ("a3c", {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}}),
    ("a3c", LSTM),
    ("async_q", {"worker": "one_step", "target_period_updates": 10}),
    ("async_q", {}),
    ("async_q", {"worker": "sarsa"}),
    ("a2c", {}),
    ("a2c", {"barrier": "step"}),
    ("ppo", {}),
    ("impala", {}),
    ("impala", {"num_learners": 3, "loss_options": {"reduction": "sum"}}),
    ("impala", {"replay_fraction": 0.5, "replay_trajectories": 64}),
    ("impala", {"extra_lag": 3}),
    ("impala", PAST),
    ("ga3c", {}),
    ("ga3c", {"annealing_options": SOON}),
    ("ga3c", LSTM),
    ("sample_factory", {"preset": "control"}),
    ("sample_factory", {"preset": "control", "sampling_options": WORKERS}),
    ("sample_factory", {"preset": "control", **PAST}),
    ("sebulba", {}),
    ("sebulba", {"eta": 4, **PAST}),
    ("areal", {}),
    ("areal", {"refresh_env_steps": 0, **PAST}),
    ("pqn", {}),
    ("seed_rl", {"sampling_options": {"groups_per_actor": 2}}),
    ("seed_rl", PAST),
    ("r2d2", {**SEQUENCES, "recurrent": "gru"}),
    ("dqn", {**REPLAY, "num_actors": 1}),
    ("gorila", {**REPLAY, "num_shards": 2}),
    ("gorila", {**REPLAY, "replay": "global", "num_shards": 1}),
    ("apex", REPLAY),
    ("apex", BOX),
    ("sac", {**BOX, "env_steps_per_update": 16.0}),
    ("td3", {**BOX, "env_steps_per_update": 16.0}),
]


@pytest.mark.parametrize(("architecture", "options"), VARIANTS, ids=str)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(architecture, options, tmp_path):
    first = train(tmp_path, architecture, seed=1, **options)
    again = train(tmp_path, architecture, seed=1, **options)
    other = train(tmp_path, architecture, seed=2, **options)
    assert first.updates >= 10
    assert first.parameters_sha256 == again.parameters_sha256
    assert (first.env_steps, first.updates) == (again.env_steps, again.updates)
    assert first.policy_lag == again.policy_lag
    assert first.parameters_sha256 != other.parameters_sha256
    assert sum(first.dropped.values()) == 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("a2c", {}),
        ("a2c", {"barrier": "step"}),
        ("ppo", {}),
        ("sebulba", {"eta": 0, **LSTM}),
        ("areal", {"eta": 0}),
        ("pqn", {}),
    ],
)
def test_synchronous_systems_have_no_lag(architecture, options, tmp_path):
    result = train(tmp_path, architecture, **options)
    assert result.updates >= 10
    assert result.policy_lag["max"] == result.policy_lag["min"] == 0
    assert len(result.policy_lag["histogram"]) == 1


def test_a3cs_lag_is_that_of_the_other_workers(tmp_path):
    """One worker has none. With three in turns, about two others update between copy and use."""
    alone = train(tmp_path, "a3c", num_actors=1)
    assert alone.updates > 10
    assert alone.policy_lag["max"] == 0
    three = train(tmp_path, "a3c", num_actors=3)
    assert three.policy_lag["min"] >= 0
    assert three.policy_lag["mean"] == pytest.approx(2.0, abs=0.3)


DIAL = {
    "dqn": {**REPLAY, "num_actors": 1},
    **dict.fromkeys(("gorila", "apex"), REPLAY),
    "sac": {**BOX, "env_steps_per_update": 16.0},
    "td3": {**BOX, "env_steps_per_update": 16.0},
    "r2d2": {**SEQUENCES, "recurrent": "gru"},
    "sample_factory": {"preset": "control"},
    "league": {"env": "veldt:kuhn"},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_lag_dial_makes_each_row_exactly_so_much_older(architecture, tmp_path, monkeypatch):
    """Rows have the version that they have without it minus the dial; the first weights are the
    oldest. What is replayed is drawn by other priorities, so there the mean is about that."""
    newest, rows, extra = [], [], 3
    record_lag = Learner._record_lag

    def recording(self, batch):
        versions = batch["parameter_version"]
        versions = versions[:-1] if "ignored" in batch.arrays else versions
        newest.append(self.gradients.newest_version(self._version))
        rows.append(versions.ravel().copy())
        return record_lag(self, batch)

    monkeypatch.setattr(Learner, "_record_lag", recording)
    plain = train(tmp_path, architecture, **DIAL.get(architecture, {}))
    expected = [n - np.maximum(v - extra, 0) for n, v in zip(newest, rows, strict=True)]
    newest.clear(), rows.clear()
    lagged = train(tmp_path, architecture, extra_lag=extra, **DIAL.get(architecture, {}))
    found = [n - v for n, v in zip(newest, rows, strict=True)]
    assert plain.updates >= 5
    if architecture in ("dqn", "gorila", "apex", "sac", "td3", "r2d2"):
        wanted = np.concatenate(expected).mean()
        assert lagged.policy_lag["mean"] == pytest.approx(wanted, rel=0.02)
        assert wanted > plain.policy_lag["mean"] + 0.5
        return
    for of_update, wanted in zip(found, expected, strict=False):  # the runs end a little apart
        np.testing.assert_array_equal(of_update, wanted)
    counted = np.bincount(np.concatenate(found))
    assert lagged.policy_lag["histogram"] == counted.tolist()
    assert lagged.policy_lag["max"] == len(counted) - 1
    assert lagged.policy_lag["mean"] == pytest.approx(np.concatenate(found).mean())
    steps = lagged.policy_lag["mean"] * lagged.env_steps / lagged.updates
    assert lagged.policy_lag["mean_env_steps"] == pytest.approx(steps)


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_eta_is_the_lag_of_every_row(eta, tmp_path):
    result = train(tmp_path, "sebulba", eta=eta, total_env_steps=2_000)
    rows, rest = divmod(sum(result.policy_lag["histogram"]), result.updates)
    expected = [rows] * eta + [rows * (result.updates - eta)]
    assert (result.policy_lag["histogram"], rest) == (expected, 0)


@pytest.mark.parametrize("refresh", [0, 1])
def test_areal_without_eta_is_ppo(refresh, tmp_path):
    ppo = train(tmp_path, "ppo")
    areal = train(tmp_path, "areal", eta=0, refresh_env_steps=refresh)
    assert areal.parameters_sha256 == ppo.parameters_sha256


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_eta_bounds_the_lag_of_areal(backend, tmp_path):
    result = train(tmp_path, "areal", eta=2, backend=backend, total_env_steps=4_000)
    assert result.updates >= 5
    assert result.policy_lag["max"] <= 2
    assert sum(result.dropped.values()) == 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("sebulba", {}),
        (
            "sebulba",
            {
                "env": "Pendulum-v1",
                "num_actors": 3,
                "eta": 2,
                "sampling_options": {"groups_per_actor": 1},
            },
        ),
        ("sebulba", {"env": "veldt/Catch-v0", "recurrent": "gru", "extra_lag": 1}),
        ("ppo", {}),
        ("areal", {"refresh_env_steps": 0}),
        ("pqn", {}),
        ("a2c", {"env": "Pendulum-v1"}),
    ],
)
def test_a_paced_run_on_processes_has_the_bits_of_a_serial_one(architecture, options, tmp_path):
    serial = train(tmp_path, architecture, **options)
    processes = train(tmp_path, architecture, **options, backend="process")
    assert serial.updates == processes.updates >= 5
    assert serial.parameters_sha256 == processes.parameters_sha256
    assert serial.policy_lag["histogram"] == processes.policy_lag["histogram"]


def test_updates_count_what_was_applied(tmp_path):
    """Two learners make one update together; A3C's workers each make their own."""
    two = train(tmp_path, "impala", num_learners=2, total_env_steps=3_000)
    rows = two.updates * 2 * 4 * 5
    assert abs(two.env_steps - rows) < 0.1 * two.env_steps
    a3c = train(tmp_path, "a3c", total_env_steps=3_000)
    assert abs(a3c.env_steps - a3c.updates * 4 * 5) < 0.1 * a3c.env_steps


def last_metrics(run_dir):
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def test_replay_makes_half_of_what_is_learned_and_widens_the_lag(tmp_path):
    plain = train(tmp_path, "impala", total_env_steps=4_000)
    options = {"replay_fraction": 0.5, "replay_trajectories": 200, "total_env_steps": 4_000}
    replayed = train(tmp_path, "impala", **options)
    counters = last_metrics(replayed.run_dir)
    share = counters["counter/replayed_env_steps"] / counters["counter/trained_env_steps"]
    assert share == pytest.approx(0.5, abs=0.02)  # the first batch has nothing to replay
    assert replayed.policy_lag["max"] > 10 * max(1, plain.policy_lag["max"])
    assert replayed.policy_lag["mean"] > plain.policy_lag["mean"] + 5


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("dqn", {"num_actors": 1}), ("gorila", {}), ("gorila", {"replay": "global"}), ("apex", {})],
    ids=str,
)
def test_env_steps_per_update_are_kept(architecture, options, tmp_path):
    options = {**REPLAY, **options, "total_env_steps": 6_000, "env_steps_per_update": 8}
    result = train(tmp_path, architecture, **options)
    replays = 2 if options.get("replay") is None and architecture == "gorila" else 1
    expected = (result.env_steps - replays * REPLAY["min_replay_transitions"]) / 8
    assert result.updates == pytest.approx(expected, rel=0.15)


def test_r2d2_keeps_the_replay_ratio(tmp_path):
    options = {**SEQUENCES, "replay_ratio": 3.0, "total_env_steps": 4_000}
    result = train(tmp_path, "r2d2", **options)
    ratio = last_metrics(result.run_dir)["counter/replay.samples_per_insert"]
    assert ratio == pytest.approx(3.0, rel=0.1)


def test_ga3cs_annealing_is_logged_with_verdicts(tmp_path):
    result = train(
        tmp_path,
        "ga3c",
        total_env_steps=20_000,
        annealing_options={"annealing_window_seconds": 0.5, "annealing_warm_up_seconds": 0.2},
    )
    with open(f"{result.run_dir}/tuning.jsonl", encoding="utf-8") as file:
        verdicts = [json.loads(line) for line in file]
    assert len(verdicts) >= 5
    for verdict in verdicts:
        assert verdict["kept"] == (verdict["throughput"] >= verdict["previous"])
        assert min(verdict["setting"].values()) >= 1


@pytest.mark.parametrize(
    ("architecture", "options", "remedy"),
    [
        ("sample_factory", {"synchronous": True}, "use sebulba"),
        ("sebulba", {"backend": "ray"}, "--backend process"),
        ("pqn", {"recurrent": "gru"}, "use r2d2"),
        ("pqn", {"env": "Pendulum-v1"}, "discrete actions"),
        ("impala", {"extra_lag": -1}, "use 0 to 10,000"),
        ("a2c", {"barrier": "none"}, "use trajectory, step"),
        ("impala", {"replay_fraction": 1.0}, "below 1"),
        ("a3c", {"clusters": 2}, "was removed"),
        ("a3c", {"algorithm": "n_step_q"}, "use async_q"),
        ("seed_rl", {"algorithm": "r2d2"}, "use r2d2"),
        ("apex", {"algorithm": "sac"}, "use sac or td3"),
        ("async_q", {"exploration_options": {"epsilon_odds": (0.5, 0.1)}}, "add up to 1"),
        ("a3c", {"backend": "ray"}, "--backend process"),
        ("ga3c", {"backend": "ray"}, "memory of one machine; use --backend process, or seed_rl"),
        ("sample_factory", {"envs_per_actor": 5}, "equal groups"),
        ("r2d2", {"unroll_steps": 7}, "not a multiple of trajectory_steps"),
        ("dqn", {"num_actors": 2}, "one actor"),
        ("dqn", {"num_actors": 1, "replay_transitions": 10}, "two trajectories"),
        ("dqn", {"num_actors": 1, "min_replay_transitions": 60_000}, "raise it"),
        ("apex", {"env_steps_per_update": 0.0}, "use above 0 .*, or none"),
        ("apex", {"eviction": "lowest_priority"}, "the oldest data leaves"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_the_start(
    architecture, options, remedy, tmp_path
):
    with pytest.raises(ConfigurationError, match=remedy):
        train(tmp_path, architecture, **options)
    assert not list(tmp_path.iterdir())
