# SPDX-License-Identifier: Apache-2.0
"""EnvPool's vector environments, as one vector or as alternating groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from veldt.environments import lookup
from veldt.environments.alternating_groups import Received, groups_of
from veldt.environments.vector import OpenedVector
from veldt.errors import ConfigurationError

if TYPE_CHECKING:
    from veldt.environments.factory import EnvironmentFactory


def open_envpool(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int, seed: int
) -> OpenedVector:
    """EnvPool always resets on the next step and takes its seed when it is made."""
    arguments = _arguments(factory, options)
    env = _make(factory, num_envs=num_envs, seed=seed, **arguments)
    return OpenedVector(env, **_facts(env, arguments))


def open_envpool_groups(
    factory: EnvironmentFactory, num_groups: int, num_envs: int, seed: int
) -> list[OpenedVector] | None:
    """Groups of `num_envs` environments that alternate on one thread; None for several threads."""
    arguments = _arguments(factory, dict(factory.options))
    if arguments["num_threads"] != 1 or "batch_size" in arguments:
        return None
    shared = _make(
        factory, num_envs=num_groups * num_envs, batch_size=num_envs, seed=seed, **arguments
    )
    facts = _facts(shared, arguments)
    groups = groups_of(EnvPoolGroups(shared, num_envs))
    return [OpenedVector(group, stepper=group, **facts) for group in groups]


class EnvPoolGroups:
    """EnvPool with batches of `width` environments; actions carry environment ids."""

    def __init__(self, shared: Any, width: int) -> None:
        self.env, self.width = shared, width
        self._ids = np.arange(shared.num_envs, dtype=np.int32)

    def begin(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self.env.async_reset()
        observation, *_, info = self.recv()
        return observation, info

    def send(self, actions: np.ndarray, first: int) -> None:
        self.env.send(actions, self._ids[first : first + self.width])

    def recv(self) -> Received:
        received: Received = self.env.recv()
        return received


def _make(factory: EnvironmentFactory, **arguments: Any) -> Any:
    envpool = lookup.envpool_module()
    task = factory.name.removeprefix(lookup.ENVPOOL_PREFIX)
    lookup.check_envpool_task(envpool, task)
    return envpool.make(task, env_type="gymnasium", **arguments)


def _facts(env: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Fields of OpenedVector."""
    return {
        "autoreset": AutoresetMode.NEXT_STEP,
        "frames_per_step": int(env.config.get("frame_skip", 1)),
        "seeded": True,
        "life_loss": "resets" if arguments.get("episodic_life") else "none",
    }


def _arguments(factory: EnvironmentFactory, options: dict[str, Any]) -> dict[str, Any]:
    if factory.vectorization not in ("auto", "native") or factory.autoreset not in (
        "default",
        "next_step",
    ):
        raise ConfigurationError(
            f"'{factory.name}' runs on EnvPool, which resets on the next step; "
            "leave vectorization at auto and autoreset at default"
        )
    if factory.time_limit is not None:
        options["max_episode_steps"] = factory.time_limit
    return {"num_threads": 1, **options}
