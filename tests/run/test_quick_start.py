# SPDX-License-Identifier: Apache-2.0
"""Nothing is done twice, or one after the other without need, before the first step of a run."""

import json
from collections import Counter

import pytest
from commands import run

TIMEOUT_SECONDS, NUM_ACTORS, ENVS_PER_ACTOR = 60.0, 3, 2

ENVIRONMENT = f"""
import itertools, os, sys, time
from pathlib import Path
import gymnasium, numpy as np

HERE, COUNT = Path(__file__).parent, itertools.count()

class Together(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        where = "actor" if "veldt.backends.process.preload" in sys.modules else "run"
        (HERE / f"{{where}}-{{os.getpid()}}-{{next(COUNT)}}.made").touch()
        deadline = time.monotonic() + {TIMEOUT_SECONDS}
        while where == "actor" and len(list(HERE.glob("actor-*-0.made"))) < {NUM_ACTORS}:
            assert time.monotonic() < deadline, "another actor is started only after this one"
            time.sleep(0.01)

    def reset(self, *, seed=None, options=None):
        return np.zeros((36, 36, 1), np.uint8), {{}}

    def step(self, action):
        return np.zeros((36, 36, 1), np.uint8), 0.0, False, False, {{}}
"""


@pytest.mark.slow
def test_actors_open_together_and_the_run_opens_one_environment_for_its_spaces(tmp_path):
    (tmp_path / "together.py").write_text(ENVIRONMENT)
    words = "train sample_factory --env together:Together --quiet --run-dir run"
    words += f" --num-actors {NUM_ACTORS} --envs-per-actor {ENVS_PER_ACTOR}"
    words += " --total-env-steps 100 --evaluation-episodes 0"
    done = run(tmp_path, *words.split())
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert 0 < result["start_seconds"] <= result["wall_seconds"]
    made = Counter(path.stem.rpartition("-")[0] for path in tmp_path.glob("*.made"))
    assert [count for name, count in made.items() if name.startswith("run")] == [1]
    assert sorted(made.values()) == [1, *[ENVS_PER_ACTOR] * NUM_ACTORS]
