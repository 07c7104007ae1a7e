# SPDX-License-Identifier: Apache-2.0
"""Games by name in every architecture: one policy in all seats, and leagues on PettingZoo."""

import pytest

import veldt
from veldt.backends.serial import SerialBackend
from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import make_plan

SMALL = {"backend": "serial", "network_options": {"hidden_sizes": (8,)}, "evaluation_episodes": 2}


@pytest.mark.parametrize("architecture", ["impala", "sample_factory"])
@pytest.mark.parametrize("env", ["veldt:leduc", "pettingzoo:mpe2.simple_spread_v3"])
def test_one_policy_plays_all_seats(architecture, env, tmp_path):
    if env.startswith("pettingzoo:"):
        pytest.importorskip("mpe2")
    sizes = {"total_env_steps": 1500, "envs_per_actor": 12, "preset": "control"}
    result = veldt.train(architecture, env, run_dir=str(tmp_path), **sizes, **SMALL)
    assert result.updates > 3
    assert result.episodes > 0
    assert result.league is None


@pytest.mark.parametrize(
    "env", ["pettingzoo:mpe2.simple_adversary_v3", "pettingzoo:pettingzoo.classic.tictactoe_v3"]
)
def test_a_league_plays_pettingzoo(env, tmp_path):
    """Parallel with unequal spaces, and AEC with masks."""
    pytest.importorskip("mpe2")
    sizes = {"total_env_steps": 2000, "envs_per_actor": 8}
    sizes["league_options"] = {"freeze_env_steps": 400}
    result = veldt.train("league", env, run_dir=tmp_path, **sizes, **SMALL)
    assert result.league["frozen"] >= 3
    assert result.league["games"] > 5
    assert result.nash_conv is None
    assert not (tmp_path / "best").exists()  # without a measure the last model is the best known


def test_what_a_game_does_not_have_is_refused():
    with pytest.raises(ConfigurationError, match="vectorization at auto"):
        EnvironmentFactory("veldt:kuhn", vectorization="in_process").spec()


@pytest.mark.parametrize(("architecture", "rows_per_step"), [("impala", 2), ("league", 1)])
def test_one_policy_and_a_league_count_decisions(architecture, rows_per_step, tmp_path):
    """Rows of seats that wait are no env steps, neither played nor learned from."""
    options = RunOptions("veldt:kuhn", backend="serial", num_actors=1, envs_per_actor=8)
    plan = make_plan(architecture, options, {"trajectory_steps": 4, "batch_trajectories": 1})
    backend = SerialBackend(plan.topology, seed=3)
    backend.run_dir = tmp_path
    backend.start()
    try:
        for _ in range(12):
            backend.advance(0.0)
        counters = {k: v for node in backend.snapshots() for k, v in node.counters.items()}
    finally:
        backend.stop()
    assert counters["updates"] > 2
    assert counters["trained_env_steps"] == 4 * 8 * counters["updates"] / rows_per_step
    assert counters["env_steps"] >= counters["trained_env_steps"]
    assert counters["env_steps"] < counters["trained_env_steps"] + 3 * 4 * 8 / rows_per_step
