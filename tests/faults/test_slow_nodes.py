# SPDX-License-Identifier: Apache-2.0
"""A node that cannot hand over its state, or takes long to: budgets hold, the run goes on, and the
cause is named."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import commands
import psutil
import pytest

pytestmark = pytest.mark.slow

SMALL = ("--num-actors", "1", "--envs-per-actor", "2", "--evaluation-episodes", "0")
LEISURELY = ("--env", "faulty_environments:leisurely_cart_pole")  # others need the processor, too
SLACK_SECONDS = 25.0  # beyond a budget: patience for nodes, their grace, a busy machine


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(small_disk):
    """Nodes cannot write their parts. The run is as long as it was to be, and says why."""
    seconds = 30.0
    words = ("train", "impala", *LEISURELY, *SMALL, "--run-dir", "run", "--json")
    limits = ("--max-seconds", str(seconds), "--checkpoint-options", "seconds=1")
    with commands.started(small_disk, *words, *limits) as process:
        commands.wait_until(
            lambda: list(small_disk.glob("run/checkpoints/checkpoint-*")), "a checkpoint", process
        )
        with suppress(OSError), open(small_disk / "filler", "ab", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert any("No space left on device" in note for note in notes), notes
    result = events[-1]
    assert result["event"] == "result"
    assert result["stopped_by"] == "seconds"
    assert result["wall_seconds"] < seconds + SLACK_SECONDS
    (small_disk / "filler").unlink()
    done = commands.run(small_disk, "resume", "run", "--quiet", "--max-seconds", "20")
    assert done.returncode == 0, done.stderr


def test_one_actor_that_cannot_write_its_part_costs_no_checkpoint(tmp_path):
    words = ("train", "impala", "--env", "faulty_environments:Hoarding", "--num-actors", "2")
    limits = ("--envs-per-actor", "1", "--checkpoint-options", "seconds=1", "--json")
    with commands.started(tmp_path, *words, *limits, "--run-dir", "run") as process:
        commands.wait_until(
            lambda: list(tmp_path.glob("run/checkpoints/checkpoint-*")), "a checkpoint", process
        )
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=commands.PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert "Too many open files" in out
    assert commands.saved(tmp_path / "run")[1]
    done = commands.run(tmp_path, "resume", "run", "--quiet", "--max-seconds", "2")
    assert done.returncode == 0, done.stderr


def test_a_budget_of_time_holds_while_an_environment_resets(tmp_path):
    """Its second reset takes half a minute: the actor is left out of the last checkpoint."""
    words = ("train", "impala", "--env", "faulty_environments:LateSlowReset", *SMALL)
    done = commands.run(tmp_path, *words, "--run-dir", "run", "--max-seconds", "20", "--quiet")
    assert done.returncode == 0, done.stderr
    result, complete = commands.saved(tmp_path / "run")
    assert complete
    assert result["stopped_by"] == "seconds"
    assert 0 < result["env_steps"] < 100
    assert result["wall_seconds"] < 20 + SLACK_SECONDS


def test_a_budget_that_is_over_before_the_first_reset_is_said_in_one_line(tmp_path):
    began = time.monotonic()
    words = ("train", "impala", "--env", "faulty_environments:SlowReset", *SMALL)
    done = commands.run(tmp_path, *words, "--run-dir", "run", "--max-seconds", "8")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "max_seconds 8 had passed before" in done.stderr
    assert "faulty_environments:SlowReset" in done.stderr
    assert time.monotonic() - began < 8 + SLACK_SECONDS
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_suspended_goes_on_without_a_restart(tmp_path, monkeypatch):
    """As a scheduler does that lends its cores to another job: for longer than a node may be silent
    while somebody listens."""
    words = ("train", "impala", *LEISURELY, *SMALL, "--run-dir", "run")
    monkeypatch.setenv("VELDT_HANG_SECONDS", "3")
    with commands.started(tmp_path, *words, "--max-seconds", "25", "--quiet") as process:
        commands.wait_for_training(tmp_path / "run", process)
        whole = psutil.Process(process.pid)
        everyone = [whole, *whole.children(recursive=True)]
        for each in everyone:
            each.suspend()
        time.sleep(8.0)
        whole.resume()
        time.sleep(1.5)  # whoever watches looks before the others had their turn
        for each in everyone:
            each.resume()
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    result, _ = commands.saved(tmp_path / "run")
    assert result["restarts"] == 0
    assert result["stopped_by"] == "seconds"
