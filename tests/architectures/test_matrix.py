# SPDX-License-Identifier: Apache-2.0
"""Which spaces and networks each system trains with, and which it refuses before the start."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import veldt
from veldt.architectures import ON_ONE_PLAYER

ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "bounded": spaces.Box(-2.0, 2.0, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "number": spaces.Discrete(5),
    "image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "dict": spaces.Dict(
        {"image": spaces.Box(0, 255, (12, 12, 1), np.uint8), "vector": spaces.Box(-1.0, 1.0, (2,))}
    ),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "memory": {"recurrent": "gru", "network_options": {"hidden_sizes": (8,), "recurrent_size": 8}},
    "past": {
        "network_options": {
            "hidden_sizes": (8,),
            "recurrent_size": 8,
            "last_action_and_reward": True,
        }
    },
    "normalised": {"normalize_observations": True},
    "stacked": {"wrappers": {"frame_stack": 2}},
}
_BOX, _NO_MEMORY = {"bounded", "unbounded"}, {"memory", "past"}
_ONLY_DISCRETE = {"multi_discrete", *_BOX}
_TWIN_CRITICS = {"discrete", "multi_discrete", "unbounded", *_NO_MEMORY}
REFUSED: dict[str, set[str]] = {
    "dqn": _ONLY_DISCRETE | _NO_MEMORY,
    "gorila": _ONLY_DISCRETE | _NO_MEMORY,
    "a3c": set(),
    "a2c": set(),
    "async_q": _ONLY_DISCRETE,
    "ppo": set(),
    "ga3c": set(),
    "apex": {"multi_discrete", "unbounded"} | _NO_MEMORY,
    "sac": _TWIN_CRITICS,
    "td3": _TWIN_CRITICS,
    "impala": set(),
    "r2d2": _ONLY_DISCRETE,
    "seed_rl": set(),
    "sample_factory": set(),
    "sebulba": set(),
    "areal": set(),
    "pqn": _ONLY_DISCRETE | _NO_MEMORY,
}
"""All else is trained."""

_SMALL_REPLAY = {"min_replay_transitions": 32, "batch_size": 16, "replay_transitions": 4_000}
_SMALL_BATCHES = {"trajectory_steps": 8, "num_envs": 2}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("dqn", "gorila", "apex", "sac", "td3"), _SMALL_REPLAY),
    **dict.fromkeys(("ppo", "sebulba", "areal", "pqn"), _SMALL_BATCHES),
    "sample_factory": {**_SMALL_BATCHES, "batch_rows": 16},
    "r2d2": {
        "min_replay_sequences": 4,
        "batch_sequences": 4,
        "burn_in_steps": 2,
        "unroll_steps": 5,
        "trajectory_steps": 5,
    },
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


def cases():
    for name in ON_ONE_PLAYER:
        usual = "bounded" if "discrete" in REFUSED[name] else "discrete"
        for action in ACTIONS:
            yield name, "vector", action, {}, action in REFUSED[name]
        for observation in list(OBSERVATIONS)[1:]:
            yield name, observation, usual, {}, observation in REFUSED[name]
        for network, options in NETWORKS.items():
            yield name, "vector", usual, options, network in REFUSED[name]


@pytest.mark.parametrize(("name", "observation", "action", "network", "refused"), list(cases()))
def test_it_trains_or_is_refused(name, observation, action, network, refused, tmp_path):
    options = {
        "env_options": {"observation": observation, "action": action},
        "backend": "serial",
        "network_options": {"hidden_sizes": (8,)},
        "num_actors": 1,
        "envs_per_actor": 2,
        "total_env_steps": 120,
        "evaluation_episodes": 2,
        "run_dir": str(tmp_path / "run"),
        **network,
        **OWN.get(name, {}),
    }
    if refused:
        with pytest.raises(veldt.ConfigurationError):
            veldt.train(name, env=Drawn, **options)
        assert not (tmp_path / "run").exists()
    else:
        result = veldt.train(name, env=Drawn, **options)
        assert result.updates >= 2
        assert result.evaluation_return == pytest.approx(6.0)
