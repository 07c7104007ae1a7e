# SPDX-License-Identifier: Apache-2.0
"""Too little memory, disk or file descriptors: a message that names what is needed and what there
is, never a SIGBUS and never a run that dies later of it."""

import os
import resource
import shutil

import pytest
from commands import run

from veldt.backends.process.backend import ProcessBackend
from veldt.options import RunOptions
from veldt.resources import ShortageError
from veldt.run.plan import make_plan

TRAIN = ["train", "impala", "--env", "CartPole-v1", "--num-actors", "2", "--envs-per-actor", "2"]


def test_a_small_dev_shm_and_few_descriptors_do_not_matter(tmp_path):
    """Memory between processes has no name there. The run has a mount namespace of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("mounting needs root")
    limits = 'ulimit -n 256 && mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    words = ("--quiet", "--total-env-steps", "1000", "--trajectory-steps", "100")
    within = ("unshare", "--mount", "bash", "-c", limits, "-")
    done = run(tmp_path, *TRAIN, *words, "--evaluation-episodes", "0", within=within)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("this container may not mount")
    assert done.returncode == 0, done.stderr  # and no SIGBUS


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
