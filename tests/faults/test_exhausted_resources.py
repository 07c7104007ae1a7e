# SPDX-License-Identifier: Apache-2.0
"""Too little memory, disk or file descriptors: a message that names what is needed and what there
is, never a SIGBUS and never a run that dies later of it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import veldt
from veldt.backends.process.backend import ProcessBackend
from veldt.options import RunOptions
from veldt.resources import ShortageError
from veldt.run.plan import make_plan

ROOT = str(Path(veldt.__file__).parent.parent)
TRAIN = ["train", "impala", "--env", "CartPole-v1", "--num-actors", "2", "--envs-per-actor", "2"]


def run(options: list[str], preparation: str, run_dir: Path) -> subprocess.CompletedProcess:
    """A short training after the shell's `preparation`, in a mount namespace of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("mounting needs root")
    words = [sys.executable, "-m", "veldt", *TRAIN, *options, "--evaluation-episodes", "0"]
    shell = f'{preparation} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", shell, "-", *words, "--run-dir", str(run_dir)],
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("this container may not mount")
    return done


def test_a_small_dev_shm_and_few_descriptors_do_not_matter(tmp_path):
    """Memory between processes has no name there."""
    limits = "ulimit -n 256 && mount -t tmpfs -o size=64k tmpfs /dev/shm"
    options = ["--quiet", "--total-env-steps", "1000", "--trajectory-steps", "100"]
    done = run(options, limits, tmp_path / "run")
    assert done.returncode != -signal.SIGBUS
    assert done.returncode == 0, done.stderr


def topology(architecture: str, num_actors: int = 2, **own):
    options = RunOptions("CartPole-v1", num_actors=num_actors, envs_per_actor=2, backend="serial")
    return make_plan(architecture, options, own).topology


def test_more_processes_than_descriptors_allow_are_refused():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with pytest.raises(ShortageError, match=r"needs about \d+ file .* may open 256; use fewer"):
            ProcessBackend(topology("impala", num_actors=64), seed=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_memory_than_there_is_is_refused(monkeypatch):
    words = r"needs [0-9,]+ bytes of memory but [0-9,]+ are available; "
    with pytest.raises(ShortageError, match="'what travels between the nodes' " + words):
        topology("impala", trajectory_steps=10**9, queue_trajectories=10**3)
    monkeypatch.setattr("veldt.resources.available_bytes", lambda: 10**9)  # some have much more
    with pytest.raises(ShortageError, match="'replay' " + words + "lower --replay-transitions"):
        topology("apex", replay_transitions=10**9)
