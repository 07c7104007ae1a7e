# SPDX-License-Identifier: Apache-2.0
"""The evaluator: fresh episodes with given weights and no exploration."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from veldt.environments import EnvironmentFactory
from veldt.networks import FlatParameters, NetworkFactory
from veldt.roles.policies.selection import greedy_actions
from veldt.types import LAST_ACTION, LAST_REWARD

_MAX_ROWS = 30_000  # longer than any episode of a standard task, so that evaluation always ends


def whole_games(environment: EnvironmentFactory) -> EnvironmentFactory:
    """The environment without what only eases learning: clipped rewards, lives as episodes."""
    options = tuple(entry for entry in environment.options if entry[0] != "episodic_life")
    return replace(environment, options=options, reward_clip=None)


class Evaluator:
    """Plays one episode in each of `num_episodes` environments side by side, the likeliest action
    each time. Short episodes cannot crowd out long ones: every environment counts exactly once."""

    def __init__(
        self,
        environment: EnvironmentFactory,
        network: NetworkFactory,
        seed: int,
        num_episodes: int = 20,
        render: bool = False,
    ) -> None:
        self._environment = whole_games(environment).make(num_episodes, seed, render=render)
        self._network = network.blank().eval()
        self._flat = FlatParameters(self._network)
        self.frames: list[np.ndarray] = []
        self._render = render

    def returns(self, vector: np.ndarray, max_seconds: float | None = None) -> np.ndarray:
        """Returns of the episodes that ended within `max_seconds`, all of them if it is None."""
        self._flat.load(vector)
        environment = self._environment
        environment.reset()
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        running = np.ones(environment.num_envs, bool)
        totals = np.zeros(environment.num_envs)
        state = self._network.initial_state(environment.num_envs)
        past = self._no_past()
        for _ in range(_MAX_ROWS):
            action, state = self._act({**environment.observations, **past}, state)
            if self._render:
                self._keep_frame(running)
            step = environment.step(self._network.env_action(action))
            totals += np.where(running, step.reward, 0.0)
            running &= ~(step.terminated | step.truncated)
            if past:
                past = {LAST_ACTION: action, LAST_REWARD: step.reward.copy()}
            if not running.any() or (deadline is not None and time.monotonic() > deadline):
                break
        return totals[~running]

    def _act(self, observations: dict[str, np.ndarray], state: Any) -> tuple[np.ndarray, Any]:
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array) for name, array in observations.items()}
            first = torch.from_numpy(self._environment.first)
            outputs, state = self._network.step(tensors, state, first)
            return greedy_actions(self._network, outputs, tensors).numpy(), state

    def _no_past(self) -> dict[str, np.ndarray]:
        fields = self._network.input_fields().items()
        return {
            name: np.zeros((self._environment.num_envs, *field.shape), field.dtype)
            for name, field in fields
        }

    def _keep_frame(self, running: np.ndarray) -> None:
        if running[0]:
            frame = self._environment.render()
            if frame is not None:
                self.frames.append(frame)

    def close(self) -> None:
        self._environment.close()
