# SPDX-License-Identifier: Apache-2.0
"""On serial, a run that was interrupted and resumed ends with the bits of one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.checkpoints.store import CheckpointStore

HALF = 500
SMALL = {
    "backend": "serial",
    "envs_per_actor": 4,
    "evaluation_episodes": 0,
    "network_options": {"hidden_sizes": (16,)},
    "checkpoint_options": {"env_steps": HALF},
    "seed": 5,
}
REPLAY = {"min_replay_transitions": 100, "batch_size": 16}
SEQUENCES = {
    "min_replay_sequences": 8,
    "batch_sequences": 4,
    "network_options": {"hidden_sizes": (16,), "recurrent_size": 8},
}
# Four learning players have an actor each: with one environment, checkpoints fall where asked.
LEAGUE = {
    "matchmaking": "alphastar",
    "league_options": {"freeze_env_steps": 60, "max_frozen": 6},
    "envs_per_actor": 1,
    # Schedules over total_env_steps would differ: the halves of a run are told other totals.
    "optimizer_options": {"decay_learning_rate": False},
    "loss_options": {"final_entropy": None},
    "scripted_opponents": ("simple_players:random_script",),
}
OWN = {
    "dqn": REPLAY,
    "gorila": REPLAY,
    "apex": REPLAY,
    "a2c": {"trajectory_steps": 8},
    "ppo": {"trajectory_steps": 8},
    "sebulba": {"trajectory_steps": 8},
    "areal": {"trajectory_steps": 8},
    "pqn": {"trajectory_steps": 8},
    "sac": REPLAY,
    "td3": REPLAY,
    "r2d2": SEQUENCES,
    "sample_factory": {"trajectory_steps": 8, "batch_rows": 64},
    "league": LEAGUE,
}


def train(architecture: str, run_dir: Path, env_steps: int) -> veldt.RunResult:
    options = {**SMALL, **OWN.get(architecture, {})}
    if architecture != "dqn":
        options["num_actors"] = 2
    env = ARCHITECTURES[architecture].example_env
    return veldt.train(
        architecture, env, run_dir=str(run_dir), total_env_steps=env_steps, **options
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_stopping_and_resuming_changes_no_bit(architecture, tmp_path):
    whole = train(architecture, tmp_path / "whole", 2 * HALF)
    first = train(architecture, tmp_path / "halves", HALF)
    second = veldt.resume(tmp_path / "halves", total_env_steps=2 * HALF, quiet=True)
    assert whole.updates == second.updates > first.updates > 0
    assert (whole.env_steps, whole.episodes) == (second.env_steps, second.episodes)
    assert whole.parameters_sha256 == second.parameters_sha256 != first.parameters_sha256
    difference = np.abs(weights(tmp_path / "whole") - weights(tmp_path / "halves")).max()
    assert difference == 0


def weights(run_dir: Path) -> np.ndarray:
    newest = CheckpointStore(run_dir / "checkpoints").newest()
    return newest.load("weights")["vector"]


PROGRAM = """
import sys
import veldt
from test_exact_resume import train
from pathlib import Path
train(sys.argv[2], Path(sys.argv[1]), 10**9)
"""


@pytest.mark.parametrize("architecture", ["impala", "apex"])
def test_a_killed_run_resumes_to_the_same_bits(architecture, tmp_path):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(Path(veldt.__file__).parent.parent)])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), architecture],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 90
    try:
        while not list(checkpoints.glob("checkpoint-*")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "waited in vain for a checkpoint"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    newest = CheckpointStore(checkpoints).newest()
    end = newest.step + HALF
    resumed = veldt.resume(tmp_path / "killed", total_env_steps=end, quiet=True)
    whole = train(architecture, tmp_path / "whole", end)
    assert resumed.env_steps == whole.env_steps
    assert resumed.parameters_sha256 == whole.parameters_sha256
