# SPDX-License-Identifier: Apache-2.0
"""Nothing is done twice, one after the other or without need before the first step of a run."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import veldt

ROOT = str(Path(veldt.__file__).parent.parent)
PATIENCE_SECONDS, NUM_ACTORS, ENVS_PER_ACTOR = 60.0, 3, 2

ENVIRONMENT = f"""
import itertools, json, os, sys, time
from pathlib import Path
import gymnasium, numpy as np, psutil

HERE, COUNT = Path(__file__).parent, itertools.count()

class Together(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        where = "actor" if "veldt.backends.process.preload" in sys.modules else "run"
        made = HERE / f"{{where}}-{{os.getpid()}}-{{next(COUNT)}}"
        found = {{"modules": list(sys.modules), "parent": psutil.Process().parent().cmdline()}}
        made.with_suffix(".new").write_text(json.dumps(found))
        made.with_suffix(".new").rename(made.with_suffix(".json"))
        deadline = time.monotonic() + {PATIENCE_SECONDS}
        while where == "actor" and len(list(HERE.glob("actor-*-0.json"))) < {NUM_ACTORS}:
            assert time.monotonic() < deadline, "another actor is started only after this one"
            time.sleep(0.01)

    def reset(self, *, seed=None, options=None):
        return np.zeros((36, 36, 1), np.uint8), {{}}

    def step(self, action):
        return np.zeros((36, 36, 1), np.uint8), 0.0, False, False, {{}}
"""

SERVER = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(list(sys.modules)))
"""


def python(folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> dict[str, dict[str, list[str]]]:
    """By environment that a run opened: the modules that its process had at that moment, and the
    command that started the process before it."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "together.py").write_text(ENVIRONMENT)
    words = ["--env", "together:Together", "--num-actors", NUM_ACTORS, "--envs-per-actor"]
    words += [ENVS_PER_ACTOR, "--total-env-steps", 100, "--evaluation-episodes", 0, "--run-dir"]
    python(folder, "-m", "veldt", "train", "sample_factory", "--quiet", *map(str, words), "run")
    result = json.loads((folder / "run" / "result.json").read_text())
    assert 0 < result["start_seconds"] <= result["wall_seconds"]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*-*-*.json")}


@pytest.mark.slow
def test_the_run_itself_opens_one_environment_to_learn_its_spaces(opened):
    per_process = Counter(name.rpartition("-")[0] for name in opened)
    own = [count for name, count in per_process.items() if name.startswith("run")]
    assert own == [1]
    assert sorted(per_process.values()) == [1, *[ENVS_PER_ACTOR] * NUM_ACTORS]


@pytest.mark.slow
def test_actors_are_started_together_and_import_nothing(opened, tmp_path):
    """They waited for each other, and found all that they need in the process they come from."""
    actors = [found for name, found in opened.items() if name.startswith("actor")]
    preload = re.search(r"\['veldt[^]]*\]", " ".join(actors[0]["parent"]))
    assert preload is not None
    preloaded = json.loads(python(tmp_path, "-c", SERVER, *ast.literal_eval(preload.group())))
    for found in actors:
        late = set(found["modules"]) - set(preloaded)
        assert not {name for name in late if name.startswith(("torch", "veldt", "gymnasium"))}
