# SPDX-License-Identifier: Apache-2.0
"""`veldt resume`: budgets change, nothing else; every refusal is one line that names the remedy."""

import shutil

import pytest

from veldt.checkpoints.store import CheckpointStore
from veldt.cli import main as cli
from veldt.run.directory import RunDirectory
from veldt.telemetry.result import RunResult


@pytest.fixture
def run_dir(short_run, tmp_path):
    return shutil.copytree(short_run, tmp_path / "copy")


def refusal(capsys, *arguments: str) -> str:
    assert cli.main(["resume", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("veldt: ")
    assert err.count("\n") == 1
    return err


def test_goes_on_with_another_budget(run_dir):
    before = RunResult.load(run_dir / "result.json")
    assert cli.main(["resume", str(run_dir), "--total-env-steps", "700"]) == 0
    after = RunResult.load(run_dir / "result.json")
    assert before.env_steps < 700 <= after.env_steps
    assert after.updates > before.updates
    assert after.episodes >= before.episodes
    newest = CheckpointStore(run_dir / "checkpoints").newest()
    assert newest.step == after.env_steps


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--seed", "7"), "seed cannot change when a run is resumed (it is 0)"),
        (("--num-actors", "4"), "num_actors cannot change when a run is resumed"),
        (("--trajectory-steps", "3"), "unknown option '--trajectory-steps'"),
        (("--total-env-step", "9"), "did you mean --total-env-steps?"),
    ],
)
def test_what_cannot_change_is_refused_by_name(run_dir, capsys, option, words):
    assert words in refusal(capsys, str(run_dir), *option)


def test_a_run_in_use_is_refused(run_dir, capsys):
    held = RunDirectory(str(run_dir), "impala", "CartPole-v1", resume=True)
    try:
        assert "in use by another run" in refusal(capsys, str(run_dir))
    finally:
        held.close()


def test_a_run_without_a_checkpoint_is_refused(run_dir, capsys):
    shutil.rmtree(run_dir / "checkpoints")
    assert "no checkpoint to resume from" in refusal(capsys, str(run_dir))
