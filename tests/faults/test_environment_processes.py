# SPDX-License-Identifier: Apache-2.0
"""Environments in processes of their own: one that is killed is replaced, none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import commands
import faulty_environments as faulty
import numpy as np
import psutil
import pytest

import veldt
from veldt.environments import EnvironmentFactory
from veldt.environments.resilience import EnvironmentFailure

pytestmark = pytest.mark.slow

TRAIN = (
    *("train", "impala", "--num-actors", "1", "--envs-per-actor", "2", "--quiet"),
    *("--wrappers", "vectorization=subprocess", "--evaluation-episodes", "0", "--run-dir", "run"),
)


def workers_of(environment) -> list[psutil.Process]:
    return [psutil.Process(worker._process.pid) for worker in environment._env._workers]


def kill_and_step(environment) -> None:
    workers_of(environment)[0].kill()
    environment.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_a_killed_worker_costs_its_own_episode_alone(autoreset):
    environment = EnvironmentFactory(
        faulty.Faulty, vectorization="subprocess", autoreset=autoreset
    ).make(3, seed=1)
    try:
        environment.reset()
        actions, lengths, aborted = np.zeros(3, np.int64), [], 0
        for number in range(45):
            if number == 4:
                workers_of(environment)[1].kill()
            step = environment.step(actions)
            lengths += step.episode_lengths.tolist()
            aborted += step.aborted_episodes
            if number == 4:
                assert step.truncated.tolist() == [False, True, False]
                assert step.reward.tolist() == [1.0, 0.0, 1.0]
        assert aborted == 1
        assert set(lengths) == {10}, "an episode that was cut short is no result"
        assert len(lengths) >= 11, "the killed one plays on"
        workers = workers_of(environment)
    finally:
        environment.close()
    assert not any(worker.is_running() for worker in workers)


def test_a_worker_that_is_killed_while_it_makes_its_environment_is_replaced(tmp_path):
    environment = EnvironmentFactory(
        faulty.DiesWhenFirstMade,
        options=(("mark", str(tmp_path / "mark")),),
        vectorization="subprocess",
    ).make(1, seed=1)
    try:
        environment.reset()
        assert environment.step(np.zeros(1, np.int64)).reward.tolist() == [1.0]
    finally:
        environment.close()
    assert (tmp_path / "mark").exists()


def test_one_whose_workers_always_die_is_named(tmp_path):
    environment = EnvironmentFactory(faulty.Faulty, vectorization="subprocess").make(2, seed=1)
    try:
        environment.reset()
        with pytest.raises(EnvironmentFailure, match=r"Faulty.*copy 0.*10 times.*SIGKILL"):
            [kill_and_step(environment) for _ in range(30)]
    finally:
        environment.close()


def programs(leader: int, count: int) -> list[psutil.Process]:
    """The programs that environments of a run have started, once there are so many."""
    deadline = time.monotonic() + commands.PATIENCE_SECONDS
    while True:
        found = [each for each in commands.session_of(leader) if each.name() == "sleep"]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} programs"
        time.sleep(0.1)


def test_a_run_goes_on_when_a_worker_is_killed(tmp_path):
    env = ("--env", "faulty_environments:WithProgram")
    process, run_dir = commands.start(tmp_path, *TRAIN, *env), tmp_path / "run"
    try:
        commands.wait_for_training(run_dir, process)
        programs(process.pid, 2)[0].parent().kill()
        commands.wait_until(
            lambda: commands.last_metrics(run_dir)["counter/aborted_episodes"] >= 1,
            "the episode that was cut short",
            process,
        )
        commands.wait_for_more_steps(run_dir, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    finally:
        commands.end(process)
    assert process.returncode == 0, err
    result, complete = commands.saved(run_dir)
    assert result["stopped_by"] == "interrupt"
    assert result["aborted_episodes"] >= 1
    assert result["restarts"] == 0
    assert complete
    assert commands.left_after(process.pid) == []


@pytest.mark.parametrize("vectorization", ["subprocess", "in_process"])
def test_programs_of_environments_end_with_a_run_that_is_killed(vectorization, tmp_path):
    words = (
        "--env",
        "faulty_environments:WithProgram",
        "--wrappers",
        f"vectorization={vectorization}",
    )
    process = commands.start(tmp_path, *TRAIN, *words)
    try:
        commands.wait_for_training(tmp_path / "run", process)
        programs(process.pid, 2)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=100)
    finally:
        commands.end(process)
    assert commands.left_after(process.pid) == []


def test_programs_of_environments_end_with_a_run_that_is_over(tmp_path):
    words = ("--env", "faulty_environments:WithProgram", "--wrappers", "vectorization=in_process")
    done = commands.start(tmp_path, *TRAIN, *words, "--total-env-steps", "10000")
    try:
        programs(done.pid, 2)
        _, err = done.communicate(timeout=100)
    finally:
        commands.end(done)
    assert done.returncode == 0, err
    assert commands.left_after(done.pid) == []


def spinning(folder: Path, *words: str) -> subprocess.Popen:
    """A run once its environments do not return from a step any more."""
    process = commands.start(folder, *TRAIN, "--env", "faulty_environments:Spinning", *words)
    try:
        commands.wait_until(lambda: len(list(folder.glob("spins-*"))) == 2, "both to spin", process)
    except BaseException:
        commands.end(process)
        raise
    return process


def test_environments_that_spin_end_with_the_run(tmp_path):
    process = spinning(tmp_path)
    try:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
    finally:
        commands.end(process)
    assert commands.left_after(process.pid) == []


def test_serial_runs_leave_no_worker_behind_when_they_are_killed(tmp_path):
    process = spinning(tmp_path, "--backend", "serial")
    try:
        process.kill()
        process.communicate()
    finally:
        commands.end(process)
    assert commands.left_after(process.pid) == []


def test_one_that_cannot_be_made_in_a_worker_is_named():
    with pytest.raises(veldt.ConfigurationError, match=r"raising_factory.*no such robot"):
        EnvironmentFactory(faulty.raising_factory, vectorization="subprocess").spec()
