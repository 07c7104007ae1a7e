# SPDX-License-Identifier: Apache-2.0
"""Every copy of an environment is told new parameters before its next episode, and not before."""

from __future__ import annotations

import numpy as np
import pytest
from counting_environments import CountingVectorEnvironment

from veldt.environments import EnvironmentFactory
from veldt.environments.parameters import from_vector, to_vector
from veldt.environments.small_tasks import StairsEnvironment
from veldt.errors import ConfigurationError


def climb(environment) -> list[float]:
    """Heights of the episodes that end in one step of perfect play."""
    shown = environment.observations["observation"][:, 0].astype(np.int64)
    return environment.step(shown).episode_info.get("height", [])


def test_copies_change_at_their_next_episode():
    factory = EnvironmentFactory("veldt/Stairs-v0", time_limit=50)
    assert factory.parameters is not None
    assert factory.parameters.required == ("height",)
    environment = factory.make(2, seed=0)
    environment.set_parameters({"height": 3})
    environment.reset()
    assert [climb(environment) for _ in range(2)] == [[], []]
    environment.set_parameters({"height": 2})
    heights = [height for _ in range(8) for height in climb(environment)]
    environment.close()
    assert heights[:2] == [3.0, 3.0]
    assert set(heights[2:]) == {2.0}


class Flimsy(StairsEnvironment):
    """Raises once, when `is_broken` is set."""

    is_broken = False

    def step(self, action):
        if Flimsy.is_broken:
            Flimsy.is_broken = False
            raise OSError("broken")
        return super().step(action)


def test_a_rebuilt_environment_receives_the_parameters():
    environment = EnvironmentFactory(Flimsy).make(1, seed=0)
    environment.set_parameters({"height": 2})
    environment.reset()
    Flimsy.is_broken = True
    heights = [height for _ in range(9) for height in climb(environment)]
    assert set(heights) == {2.0}


class Adjustable(CountingVectorEnvironment):
    """A vector environment that keeps what it is told."""

    told: dict[str, object]

    def set_parameters(self, **values: object) -> None:
        self.told = values


def test_a_vector_environment_is_told_as_a_whole():
    factory = EnvironmentFactory(Adjustable)
    assert factory.parameters is not None
    assert factory.parameters.takes_any
    environment = factory.make(2, seed=0)
    environment.set_parameters({"wind": 0.5, "map": "cliff"})
    assert environment._env.told == {"wind": 0.5, "map": "cliff"}
    assert EnvironmentFactory("CartPole-v1").parameters is None


def test_values_travel_exactly():
    values = {"wind": 0.1, "seed": 2**53 + 1, "map": "höhle", "size": np.int64(3), "on": True}
    values["levels"] = np.array([1.5, 2.5])
    found = from_vector(to_vector(values))
    assert found == {**values, "size": 3, "levels": [1.5, 2.5]}


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * 5000])
def test_what_cannot_travel_is_refused(value):
    with pytest.raises(ConfigurationError):
        to_vector({"value": value})
