# SPDX-License-Identifier: Apache-2.0
"""Every architecture with every kind of space and every option of the network either trains past
its first updates or is refused before the start; nothing in between."""

from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import veldt

_SMALL_REPLAY = {"min_replay_transitions": 32, "batch_size": 16, "replay_transitions": 4_000}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn", _SMALL_REPLAY),
    "gorila": ("gorila", _SMALL_REPLAY),
    "a3c": ("a3c", {}),
    "a3c_n_step_q": ("a3c", {"algorithm": "n_step_q"}),
    "a2c": ("a2c", {}),
    "ga3c": ("ga3c", {}),
    "apex": ("apex", _SMALL_REPLAY),
    "apex_dpg": ("apex", {"algorithm": "dpg", **_SMALL_REPLAY}),
    "impala": ("impala", {}),
    "seed_rl": ("seed_rl", {}),
    "seed_rl_r2d2": (
        "seed_rl",
        {
            "algorithm": "r2d2",
            "min_replay_sequences": 4,
            "batch_sequences": 4,
            "burn_in_steps": 2,
            "unroll_steps": 5,
            "trajectory_steps": 5,
        },
    ),
    "sample_factory": ("sample_factory", {}),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "number": spaces.Discrete(5),
    "image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "dict": spaces.Dict(
        {"image": spaces.Box(0, 255, (12, 12, 1), np.uint8), "vector": spaces.Box(-1.0, 1.0, (2,))}
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "bounded": spaces.Box(-2.0, 2.0, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "memory": {"recurrent": "lstm", "recurrent_size": 8},
    "past": {"last_action_and_reward": True},
    "memory_and_past": {"recurrent": "gru", "recurrent_size": 8, "last_action_and_reward": True},
    "normalised": {"normalize_observations": True},
    "stacked": {"frame_stack": 2},
}


_SIZES: dict[str, Any] = {
    "backend": "serial",
    "hidden_sizes": (8,),
    "num_actors": 1,
    "envs_per_actor": 2,
    "total_env_steps": 120,
    "evaluation_episodes": 2,
}


class Drawn(gymnasium.Env):
    """Observations drawn from the space, a reward of one, episodes of six steps."""

    def __init__(self, observation: str, action: str) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action) or np.isfinite(action).all()
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == 6, False, {}


SPACES = list(product(OBSERVATIONS, ACTIONS))
CASES = [
    (algorithm, observation, action, network)
    for number, algorithm in enumerate(ALGORITHMS)
    for network, (place, (observation, action)) in product(NETWORKS, enumerate(SPACES))
    # All spaces with a plain network; each other network with a quarter of them, another for
    # each algorithm.
    if network == "plain" or place % 4 == (number + list(NETWORKS).index(network)) % 4
]


@pytest.mark.parametrize(
    ("algorithm", "observation", "action", "network"), CASES, ids=["-".join(case) for case in CASES]
)
def test_it_trains_or_is_refused(algorithm, observation, action, network, tmp_path):
    architecture, own = ALGORITHMS[algorithm]
    run_dir = tmp_path / "run"
    options = {
        "env_options": {"observation": observation, "action": action},
        "preset": "control_r2d2" if algorithm == "seed_rl_r2d2" else "control",
        **NETWORKS[network],
        **own,
    }
    try:
        result = veldt.train(architecture, env=Drawn, run_dir=str(run_dir), **_SIZES, **options)
    except veldt.ConfigurationError:
        assert not run_dir.exists()
    else:
        assert result.updates >= 2
        assert result.evaluation_return == pytest.approx(6.0)
