# SPDX-License-Identifier: Apache-2.0
"""Population-based training rescues a policy that could not learn by itself."""

import json

import pytest

import veldt

pytestmark = pytest.mark.slow

HOPELESS, GOOD = 1e-6, 3e-3
OPTIONS = {
    "env": "CartPole-v1",
    "preset": "control",
    "seed": 1,
    "envs_per_actor": 32,
    "trajectory_steps": 8,
    "evaluation_episodes": 0,
}


def population(period_env_steps):
    rates = (HOPELESS, GOOD)
    pbt = {
        "pbt_learning_rates": rates,
        "pbt_episodes": 50,
        "pbt_period_env_steps": period_env_steps,
    }
    return {"num_policies": 2, **pbt}


def log_of(run_dir):
    with open(f"{run_dir}/population.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_the_worst_start_learns_once_it_is_replaced(tmp_path):
    run = {**OPTIONS, "backend": "serial", "total_env_steps": 40_000}
    never, often = population(10**9), population(2_500)
    alone = veldt.train(
        "sample_factory", run_dir=str(tmp_path / "a"), population_options=never, **run
    )
    assert not (tmp_path / "a" / "population.jsonl").exists()
    assert alone.best_policy == 1
    worst_alone = veldt.evaluate(alone.run_dir, policy=0).mean

    trained = veldt.train(
        "sample_factory", run_dir=str(tmp_path / "b"), population_options=often, **run
    )
    first = log_of(trained.run_dir)[0]
    assert (first["policy"], first["weights_from"]) == (0, 1)
    assert (first["old"]["learning_rate"], first["new"]["learning_rate"]) == (HOPELESS, GOOD)
    assert trained.dropped["replaced_policy"] > 0
    worst = veldt.evaluate(trained.run_dir, policy=0).mean
    assert worst > max(60, 3 * worst_alone), f"{worst_alone} alone, {worst} in a population"


def test_policies_in_processes_are_replaced_too(tmp_path):
    result = veldt.train(
        "sample_factory",
        backend="process",
        num_actors=1,
        run_dir=str(tmp_path / "run"),
        total_env_steps=40_000,
        population_options=population(2_500),
        **OPTIONS,
    )
    replaced = [entry for entry in log_of(result.run_dir) if entry["replacement"]]
    assert replaced[0]["policy"] == 0
    assert replaced[0]["new"]["learning_rate"] == GOOD
    assert result.dropped["replaced_policy"] > 0
    assert result.best_policy in (0, 1)
    means = [veldt.evaluate(result.run_dir, policy=policy).mean for policy in range(2)]
    assert min(means) > 30, means
