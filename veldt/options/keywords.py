# SPDX-License-Identifier: Apache-2.0
"""Options as keywords, so that editors complete them and mypy finds a misspelt one.

tests/options/test_options.py compares them with the dataclasses, which have the help and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from veldt.options import Backend, Correction, Tracker

Keys = Mapping[str, Any]


class ResumeOptions(TypedDict, total=False):
    """What may change when a run is resumed."""

    total_env_steps: int | None
    max_seconds: float | None
    target_return: float | None
    device: str
    checkpoint_options: Keys
    evaluation_episodes: int
    evaluate_every: int | str | None
    trackers: Sequence[Tracker]
    dashboard: bool | int
    quiet: bool
    json: bool


class TrainOptions(ResumeOptions, total=False):
    """Options of every run, then those of the published architectures.

    `veldt train ARCH --help all` explains them."""

    env_options: Keys
    wrappers: Keys
    backend: Backend
    seed: int
    run_dir: str | Path | None
    from_run: str | None
    num_actors: int | None
    envs_per_actor: int | None
    preset: str
    network: str | Callable[..., object]
    network_options: Keys
    recurrent: Literal["none", "lstm", "gru"]
    extra_lag: int
    timeline: float | None
    gamma: float
    normalize_observations: bool
    n_step: int
    double: bool
    target_period_updates: int
    batch_size: int
    replay_transitions: int
    min_replay_transitions: int
    env_steps_per_update: float | None
    optimizer: Literal["adam", "radam", "rmsprop", "sgd", "adagrad"]
    learning_rate: float
    max_grad_norm: float
    trajectory_steps: int
    dueling: bool
    loss_options: Keys
    exploration_options: Keys
    optimizer_options: Keys
    replay: Literal["bundled", "global"]
    num_learners: int
    num_shards: int
    server_options: Keys
    trace_lambda: float
    entropy_coefficient: float
    correction: Correction
    barrier: Literal["trajectory", "step"]
    worker: Literal["n_step", "one_step", "sarsa"]
    epochs: int
    minibatches: int
    ppo_clip: float
    num_envs: int
    ppo_options: Keys
    num_predictors: int
    num_trainers: int
    annealing: bool
    batch_trajectories: int
    annealing_options: Keys
    actor_learning_rate: float
    refresh_env_steps: int
    replay_options: Keys
    soft_update: float
    critic_sizes: Sequence[int]
    queue_trajectories: int
    replay_fraction: float
    replay_trajectories: int
    population_options: Keys
    burn_in_steps: int
    unroll_steps: int
    batch_sequences: int
    replay_sequences: int
    min_replay_sequences: int
    replay_ratio: float
    sampling_options: Keys
    batch_rows: int
    matchmaking: Literal["latest", "uniform", "pfsp", "alphastar"]
    scripted_opponents: Sequence[str]
    league_options: Keys
    eta: int


class SweepKeywords(TrainOptions, total=False):
    """Options of `veldt.sweep`: its own, and those of the runs."""

    trials: int
    parallel: int
    pruner: Literal["median", "halving", "none"]
    startup_trials: int
    sampler_seed: int
    out: str | None
