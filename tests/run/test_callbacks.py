# SPDX-License-Identifier: Apache-2.0
"""Callbacks receive the events of a run, can end it, and are named when they fail."""

import json
from pathlib import Path

import pytest

import veldt
from veldt.run.loading import find_checkpoint

SMALL = {"num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 2}


class Listener(veldt.Callback):
    """Keeps all events."""

    def __init__(self) -> None:
        self.metrics, self.episodes, self.checkpoints, self.evaluations = [], [], [], []

    def on_progress(self, metrics):
        self.metrics.append(metrics)

    def on_episode(self, episode):
        self.episodes.append(episode)

    def on_checkpoint(self, path: Path, env_steps: int):
        assert (path / "manifest.json").is_file()
        self.checkpoints.append(env_steps)

    def on_evaluation(self, returns, env_steps):
        self.evaluations.append((returns, env_steps))


def test_a_callback_receives_every_event(tmp_path):
    heard = Listener()
    result = veldt.train(
        "impala",
        "CartPole-v1",
        callbacks=[heard],
        backend="serial",
        total_env_steps=3_000,
        checkpoint_options={"env_steps": 1_000},
        run_dir=str(tmp_path / "run"),
        **SMALL,
    )
    assert heard.metrics[0].keys() >= {"env_steps", "updates", "return/mean_100"}
    assert len(heard.episodes) == result.episodes
    assert all(episode.total_reward == episode.length > 0 for episode in heard.episodes)
    assert len(heard.checkpoints) >= 3
    assert heard.checkpoints[-1] == result.env_steps
    [(returns, age)] = heard.evaluations
    assert (returns.mean(), age) == (result.evaluation_return, result.env_steps)


class Enough(veldt.Callback):
    def on_progress(self, metrics):
        return metrics["env_steps"] > 0


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_callback_ends_a_run(tmp_path, backend):
    path = tmp_path / "run"
    result = veldt.train(
        "impala", "CartPole-v1", [Enough()], backend=backend, run_dir=str(path), **SMALL
    )
    assert result.stopped_by == "callback"
    assert result.evaluation_return is not None
    assert json.loads((path / "result.json").read_text())["stopped_by"] == "callback"
    again = veldt.resume(path, callbacks=[Enough()])
    assert again.env_steps >= result.env_steps


class Clumsy(veldt.Callback):
    def on_episode(self, episode):
        raise KeyError("score")


def test_a_callback_that_raises_ends_the_run_with_its_name_after_a_checkpoint(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(
        veldt.CallbackFailure, match=r"the callback Clumsy.on_episode failed: KeyError"
    ) as failure:
        veldt.train(
            "impala", "CartPole-v1", [Clumsy()], backend="serial", run_dir=str(path), **SMALL
        )
    assert isinstance(failure.value.__cause__, KeyError)
    assert json.loads((path / "result.json").read_text())["stopped_by"] == "failure"
    assert find_checkpoint(path).meta["complete"]
    assert veldt.resume(path, total_env_steps=500).stopped_by == "env_steps"
