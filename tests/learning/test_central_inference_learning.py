# SPDX-License-Identifier: Apache-2.0
"""Central inference learns: CartPole-v1, and a task that needs memory."""

import pytest

import veldt

pytestmark = pytest.mark.slow


def train(tmp_path, env, target_return, total_env_steps, architecture="seed_rl", **options):
    return veldt.train(
        architecture,
        env=env,
        backend="serial",
        device="cpu",
        seed=1,
        target_return=target_return,
        total_env_steps=total_env_steps,
        run_dir=str(tmp_path / "run"),
        **options,
    )


def test_vtrace_learns_cartpole(tmp_path):
    # r2d2 takes minutes to the same score; the memory task below shows in seconds that it learns.
    result = train(tmp_path, "CartPole-v1", 250, 600_000)
    assert result.reached_target, f"mean return {result.mean_return_100} at the end"


@pytest.mark.parametrize("architecture", ["seed_rl", "r2d2"])
def test_a_memory_task_is_solved_by_the_state_that_the_server_keeps(architecture, tmp_path):
    options = {
        "architecture": architecture,
        "recurrent": "lstm",
        "network_options": {"recurrent_size": 32},
    }
    result = train(tmp_path, "veldt/Memory-v0", 0.95, 60_000, **options)
    assert result.reached_target, f"mean return {result.mean_return_100} at the end"
