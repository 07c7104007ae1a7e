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


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_killed_worker_costs_the_episodes_of_its_vector_alone(autoreset):
    environment = EnvironmentFactory(
        faulty.Faulty, vectorization="subprocess", autoreset=autoreset
    ).make(3, seed=1)
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
                finals = step.final_observations
                final = (
                    finals["final_observation"]
                    if finals
                    else environment.observations["observation"]
                )
                assert (final[:, 0] == last[:, 0]).all(), "of another episode"
                assert environment.first.all() == (autoreset == "same_step")
        assert aborted == 3
        assert set(lengths) == {10}, "an aborted episode was reported"
        assert len(lengths) == 9
        processes = environment._env.env.processes
    finally:
        environment.close()
    assert not any(process.is_alive() for process in processes)


def test_workers_that_always_die_are_named():
    environment = EnvironmentFactory(faulty.Faulty, vectorization="subprocess").make(2, seed=1)
    environment.reset()

    def kill_and_step():
        environment._env.env.processes[0].kill()
        environment.step(np.zeros(2, np.int64))

    with pytest.raises(EnvironmentFailure, match=r"Faulty.*10 times.*SIGKILL"):
        [kill_and_step() for _ in range(30)]
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


def test_a_run_continues_when_a_worker_is_killed(tmp_path):
    env = ("--env", "faulty_environments:WithProgram")
    process, run_dir = commands.start(tmp_path, *TRAIN, *env), tmp_path / "run"
    try:
        commands.wait_for_training(run_dir, process)
        programs(process.pid, 2)[0].parent().kill()
        commands.wait_until(
            lambda: commands.last_metrics(run_dir)["counter/aborted_episodes"] >= 2,
            "the aborted episodes",
            process,
        )
        commands.wait_for_more_steps(run_dir, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    finally:
        commands.end(process)
    assert process.returncode == 0, err
    result, complete = commands.saved(run_dir)
    assert (result["stopped_by"], result["restarts"]) == ("interrupt", 0)
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
