# SPDX-License-Identifier: Apache-2.0
"""Environments that step in processes of their own end with the run and leave nothing behind."""

import pytest
from commands import run

_ENVIRONMENT = """
import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

def make(num_envs):
    copies = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    return AsyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP)
"""


@pytest.mark.slow
def test_an_async_vector_env_leaks_no_semaphore(tmp_path):
    (tmp_path / "workers.py").write_text(_ENVIRONMENT)
    words = "train ppo --env workers:make --num-actors 1 --envs-per-actor 2 --quiet"
    ends = "--total-env-steps 2000 --evaluation-episodes 0 --run-dir run"
    ended = run(tmp_path, *words.split(), *ends.split())
    assert ended.returncode == 0
    assert not any(word in ended.stderr for word in ("leaked", "Error")), ended.stderr
