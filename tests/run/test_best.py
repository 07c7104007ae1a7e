# SPDX-License-Identifier: Apache-2.0
"""The best weights survive rotation, can be asked for, and a run that collapses says so."""

import gymnasium
import numpy as np
import pytest

import veldt
from veldt.cli import main as cli
from veldt.run.best import BestWeights, Score
from veldt.telemetry.progress import closing_lines
from veldt.types import Parameters

SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4}


class Fading(gymnasium.Env):
    """Four steps; each pays 10 until the environment is worn out, then nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    open = 0

    def __init__(self, steps: int = 400) -> None:
        self._left, self._row = steps, 0
        Fading.open += 1

    def close(self):
        Fading.open -= 1

    def reset(self, *, seed=None, options=None):
        self._row = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self._left -= 1
        self._row += 1
        reward = 10.0 if self._left > 0 else float(np.random.default_rng(self._row).random())
        return self.observation_space.sample() * 0, reward, self._row == 4, False, {}


class FadingTogether(Fading):
    """The same for all of them: a new environment is as worn out as the others."""

    taken = 0

    def step(self, action):
        FadingTogether.taken += 1
        self._left = 1_600 - FadingTogether.taken
        return super().step(action)


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    result = veldt.train(
        "impala",
        FadingTogether,
        total_env_steps=6_000,
        checkpoint_options={"env_steps": 1_000},
        evaluation_episodes=0,
        run_dir=str(path),
        **SMALL,
    )
    return path, result


def test_a_run_that_ends_far_below_its_best_says_so(collapsed):
    _, result = collapsed
    assert result.collapsed
    assert result.best_return == 40.0
    assert result.best_env_steps < 1_700
    [line] = [line for line in closing_lines(result) if line.startswith("collapsed")]
    assert "the best was 40.0" in line
    assert f"veldt evaluate {result.run_dir} --checkpoint best" in line


def test_the_best_outlives_the_rotation_and_can_be_asked_for(collapsed, capsys):
    path, result = collapsed
    kept = sorted(entry.name for entry in (path / "checkpoints").glob("checkpoint-*"))
    assert len(kept) == 2
    ages = {name: veldt.evaluate(path, 2, checkpoint=name).env_steps for name in ("best", "last")}
    assert ages == {"best": result.best_env_steps, "last": result.env_steps}
    by_number = veldt.evaluate(path, 2, checkpoint=result.best_env_steps)
    assert by_number.env_steps == result.best_env_steps
    with pytest.raises(
        veldt.ConfigurationError, match=rf"'77'; use best, last.*{result.env_steps}"
    ):
        veldt.evaluate(path, checkpoint="77")
    assert cli.main(["evaluate", str(path), "--episodes", "2"]) == 0
    assert f"after {result.best_env_steps:,} env steps" in capsys.readouterr().out


def test_where_both_evaluate_alike_nothing_has_collapsed(tmp_path):
    run_dir = str(tmp_path / "run")
    options = {"total_env_steps": 6_000, "evaluation_episodes": 3, "run_dir": run_dir}
    result = veldt.train("impala", Fading, **options, **SMALL)
    assert result.evaluation_return == 40.0  # of new environments, which are not worn out
    assert not result.collapsed


def test_other_environments_of_the_same_spaces_can_be_played(collapsed, tmp_path):
    path, _ = collapsed
    Fading.open = 0
    other = veldt.evaluate(path, 2, env=f"{__name__}:Fading")
    assert (other.returns, Fading.open) == ([40.0, 40.0], 0)
    with pytest.raises(veldt.ConfigurationError, match=r"its observation is .*vector.4., not"):
        veldt.evaluate(path, 2, env="CartPole-v1")


def test_stochastic_episodes_differ_from_greedy_ones(tmp_path):
    path = tmp_path / "run"
    options = {"total_env_steps": 200, "evaluation_episodes": 0, "run_dir": str(path)}
    veldt.train("impala", "CartPole-v1", **options, **SMALL)
    greedy, drawn = (veldt.evaluate(path, 8, stochastic=flag).returns for flag in (False, True))
    assert greedy != drawn
    assert drawn == veldt.evaluate(path, 8, stochastic=True).returns


def test_what_was_evaluated_counts_more_than_training_returns(tmp_path):
    notes: list[str] = []
    best = BestWeights(tmp_path / "best", notes.append)

    def weights(version: int) -> Parameters:
        return Parameters(np.full(3, version, np.float32), version)

    best.keep(Score(100.0, 1.0, False), weights(1), 10)
    best.evaluated(Score(60.0, 1.0, True), weights(2), 20)
    assert best.best.env_steps == 10  # the run had collapsed
    best.evaluated(Score(97.0, 1.0, True), weights(2), 20)
    assert best.best.env_steps == 20  # only this one has proved itself
    best.evaluated(Score(50.0, 1.0, True), weights(3), 30)
    assert best.best.env_steps == 20
    best.evaluated(Score(float("nan"), 1.0, True), weights(3), 30)
    best.write()
    best.evaluated(Score(98.0, 1.0, True), weights(1), 15)  # a resumed run, at an earlier point
    best.write()
    again = BestWeights(tmp_path / "best", notes.append)
    again.load()
    assert (again.best.env_steps, again.best.score) == (15, Score(98.0, 1.0, True))
    assert again.best.weights.vector.tolist() == [1.0] * 3
    assert len(list((tmp_path / "best").glob("checkpoint-*"))) == 1
    assert not notes


def test_noise_is_no_collapse(tmp_path):
    best = BestWeights(tmp_path / "best", print)
    best.keep(Score(20.0, 3.0, False), Parameters(np.zeros(1, np.float32), 0), 10)
    assert not best.has_dropped(Score(10.0, 3.0, False))
    assert best.has_dropped(Score(-10.0, 3.0, False))
    best._lowest = -20.0
    assert not best.has_dropped(Score(5.0, 0.1, False)), "less than half of what was gained"
