# SPDX-License-Identifier: Apache-2.0
"""Exploration chosen at the server: each environment keeps its rung of one ladder, in whatever
batch its row is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from veldt.algorithms.schedules import epsilon_ladder
from veldt.context import NodeContext
from veldt.networks import MASKED_LOGIT, Network, masked_q
from veldt.roles.inference.batched_policy import ENVIRONMENT
from veldt.types import VALUE_BEST, VALUE_TAKEN, PolicyReply


class LadderGreedy:
    """The best action, or with the environment's own probability a random allowed one. Keeps the
    values of the action taken and of the best one, for first priorities."""

    def __init__(
        self,
        network: Network,
        context: NodeContext,
        *,
        num_envs: int,
        base: float,
        alpha: float,
    ) -> None:
        self._epsilons = np.asarray(epsilon_ladder(np.arange(num_envs), num_envs, base, alpha))
        self._random = context.random("exploration")

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply:
        q_values = masked_q(outputs.q_values, observations).cpu().numpy()
        rungs = self._epsilons[observations[ENVIRONMENT].numpy()]
        action = q_values.argmax(-1)
        explore = self._random.random(len(action)) < rungs
        if explore.any():
            keys = self._random.random(q_values[explore].shape)
            keys[q_values[explore] <= MASKED_LOGIT] = -1.0
            action[explore] = keys.argmax(-1)
        values = {
            VALUE_TAKEN: q_values[np.arange(len(action)), action],
            VALUE_BEST: q_values.max(-1),
        }
        return PolicyReply(action, action, values, 0)
