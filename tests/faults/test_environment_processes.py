# SPDX-License-Identifier: Apache-2.0
"""Environments in processes of their own: one that is killed is replaced, none is left behind."""

from __future__ import annotations

import signal
import time

import commands
import faulty_environments as faulty
import numpy as np
import psutil
import pytest

from veldt.environments import EnvironmentFactory

pytestmark = pytest.mark.slow

TRAIN = (
    *("train", "impala", "--num-actors", "1", "--envs-per-actor", "2", "--quiet"),
    *("--wrappers", "vectorization=subprocess", "--evaluation-episodes", "0", "--run-dir", "run"),
)


def test_a_killed_worker_costs_the_episodes_of_its_vector_alone():
    environment = EnvironmentFactory(faulty.Faulty, vectorization="subprocess").make(3, seed=1)
    try:
        environment.reset()
        actions, lengths, aborted = np.zeros(3, np.int64), [], 0
        for number in range(45):
            if number == 4:
                environment._env.env.processes[1].kill()
                last = environment.observations["observation"].copy()
            step = environment.step(actions)
            lengths += step.episode_lengths.tolist()
            aborted += step.aborted_episodes
            if number == 4:
                assert step.truncated.all()
                assert not step.reward.any()
                final = environment.observations["observation"]
                assert (final[:, 0] == last[:, 0]).all(), "of another episode"
        assert aborted == 3
        assert set(lengths) == {10}, "an aborted episode was reported"
        assert len(lengths) == 9
        processes = environment._env.env.processes
    finally:
        environment.close()
    assert not any(process.is_alive() for process in processes)


def programs(leader: int, count: int) -> list[psutil.Process]:
    """The programs that environments of a run have started, once there are so many."""
    deadline = time.monotonic() + commands.PATIENCE_SECONDS
    while True:
        found = [each for each in commands.session_of(leader) if each.name() == "sleep"]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} programs"
        time.sleep(0.1)


def test_a_run_continues_when_a_worker_is_killed(tmp_path):
    env = ("--env", "faulty_environments:WithProgram")
    run_dir = tmp_path / "run"
    with commands.started(tmp_path, *TRAIN, *env) as process:
        commands.wait_for_training(run_dir, process)
        programs(process.pid, 2)[0].parent().kill()
        commands.wait_until(
            lambda: commands.last_metrics(run_dir)["counter/aborted_episodes"] >= 2,
            "the aborted episodes",
            process,
        )
        commands.wait_for_more_steps(run_dir, process)
        commands.terminated(process)
    result, complete = commands.saved(run_dir)
    assert (result["stopped_by"], result["restarts"]) == ("interrupt", 0)
    assert complete
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize("vectorization", ["subprocess", "in_process"])
def test_programs_of_environments_end_with_a_run_that_is_killed(vectorization, tmp_path):
    wrappers = ("--wrappers", f"vectorization={vectorization}")
    env = ("--env", "faulty_environments:WithProgram")
    with commands.started(tmp_path, *TRAIN, *env, *wrappers) as process:
        commands.wait_for_training(tmp_path / "run", process)
        programs(process.pid, 2)
        process.kill()
        process.communicate(timeout=100)
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize(
    ("backend", "number"), [("process", signal.SIGTERM), ("serial", signal.SIGKILL)]
)
def test_environments_that_spin_end_with_the_run(backend, number, tmp_path):
    env = ("--env", "faulty_environments:Spinning")
    with commands.started(tmp_path, *TRAIN, *env, "--backend", backend) as process:
        commands.wait_until(lambda: len(list(tmp_path.glob("spins-*"))) == 2, "both", process)
        process.send_signal(number)
        process.communicate(timeout=100)
    assert commands.left_after(process.pid) == []
