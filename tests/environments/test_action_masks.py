# SPDX-License-Identifier: Apache-2.0
"""Masks from the observation and from the info belong to the current observation in every mode."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from counting_environments import MODES
from gymnasium import spaces

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError

SIZES = (2, 3)


class Masked(gymnasium.Env):
    """The observation spells its own mask in binary; the mask is given in one of four ways. The
    last observation of an episode allows nothing."""

    def __init__(self, where):
        self.where = where
        self.observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
        if where == "observation":
            entries = {"action_mask": spaces.MultiBinary(5), "bits": self.observation_space}
            self.observation_space = spaces.Dict(entries)
        elif where == "observation_tuple":
            masks = spaces.Tuple([spaces.MultiBinary(size) for size in SIZES])
            self.observation_space = spaces.Dict(
                {"action_mask": masks, "bits": self.observation_space}
            )
        self.action_space = spaces.MultiDiscrete(list(SIZES))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.length = 3 + seed % 3  # so that environments end at different times
        self.elapsed = 0
        return self._answer()

    def step(self, action):
        assert self.mask[int(action[0])]
        assert self.mask[SIZES[0] + int(action[1])]
        self.elapsed += 1
        over = self.elapsed == self.length
        observation, info = self._answer(nothing=over)
        return observation, 0.0, over, False, info

    def _answer(self, nothing=False):
        self.mask = np.concatenate([self.np_random.permutation(size) == 0 for size in SIZES])
        self.mask |= self.np_random.random(5) < 0.3
        if nothing:
            self.mask[:] = False
        bits = self.mask.astype(np.float32)
        pair = (self.mask[:2].astype(np.int8), self.mask[2:].astype(np.int8))
        if self.where == "observation":
            return {"action_mask": self.mask.astype(np.int8), "bits": bits}, {}
        if self.where == "observation_tuple":
            return {"action_mask": pair, "bits": bits}, {}
        return bits, {"action_mask": pair if self.where == "info_tuple" else self.mask.copy()}


@pytest.mark.parametrize("where", ["observation", "observation_tuple", "info", "info_tuple"])
@pytest.mark.parametrize("mode", list(MODES))
def test_mask_belongs_to_the_current_observation(where, mode):
    factory = EnvironmentFactory(MODES[mode](partial(Masked, where)))
    spec = factory.spec()
    name = "observation.bits" if "observation" in where else "observation"
    assert [leaf.name for leaf in spec.observation] == [name]
    assert spec.action_mask_size == 5
    environment = factory.make(3, seed=1)
    environment.reset()
    random = np.random.default_rng(0)
    ended = np.zeros(3, dtype=bool)
    for _ in range(30):
        mask = environment.observations["action_mask"]
        bits = environment.observations[name].astype(bool)
        assert mask.dtype == bool
        if not spec.same_step_reset:
            assert not bits[ended].any()
            bits[ended] = True
        np.testing.assert_array_equal(mask, bits)
        step = environment.step(environment.random_actions(random))
        ended = step.terminated.copy()
    assert "final_action_mask" not in (step.final_observations or {})


def test_mask_of_the_wrong_length_is_refused():
    class Short(Masked):
        def _answer(self, nothing=False):
            bits, info = super()._answer(nothing)
            return bits, {"action_mask": info["action_mask"][:3]}

    with pytest.raises(ConfigurationError, match=r"3 entries .* 5 choices"):
        EnvironmentFactory(Short, {"where": "info"}).spec()
