# SPDX-License-Identifier: Apache-2.0
"""Environments that step in processes of their own end with the run and leave nothing behind."""

import pytest
from commands import run

_ENVIRONMENT = """
import time
import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

def make(num_envs, seconds=0):
    copies = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    made = AsyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP)
    time.sleep(seconds * (num_envs - 1))
    return made
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends", ["--total-env-steps 2000", "--max-seconds 12 --env-options seconds=60"]
)
def test_an_async_vector_env_leaks_no_semaphore(tmp_path, ends):
    (tmp_path / "workers.py").write_text(_ENVIRONMENT)
    words = "train ppo --env workers:make --num-actors 1 --envs-per-actor 2 --quiet"
    ended = run(tmp_path, *f"{words} --evaluation-episodes 0 --run-dir run {ends}".split())
    assert ended.returncode == 0
    assert not any(word in ended.stderr for word in ("leaked", "Error")), ended.stderr
