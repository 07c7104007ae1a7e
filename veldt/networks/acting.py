# SPDX-License-Identifier: Apache-2.0
"""Acting with a network: a player with memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from veldt.networks.distributions import MASKED_LOGIT
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    ActionOutput,
    PolicyValueOutput,
    QNetwork,
    QOutput,
    SACNetwork,
    SACOutput,
)
from veldt.networks.layers import State
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.types import ACTION_MASK

Outputs = PolicyValueOutput | QOutput | ActionOutput | SACOutput

Q_RANDOM_SHARE = 0.05
"""Share of random actions when a Q network plays stochastically, as DQN was evaluated in 2015."""


@dataclass
class Memory:
    """Recurrent state, last actions and rewards of `width` episodes side by side."""

    width: int
    state: State = ()
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """The last action and reward, for networks that read them."""

    @staticmethod
    def joined(memories: Sequence[Memory]) -> Memory:
        """The memory of all these episodes side by side."""
        state = tuple(map(torch.cat, zip(*(memory.state for memory in memories), strict=True)))
        past = {
            name: np.concatenate([memory.past[name] for memory in memories])
            for name in memories[0].past
        }
        return Memory(sum(memory.width for memory in memories), state, past)

    def rows(self, part: slice) -> Memory:
        """The memory of some of the episodes."""
        past = {name: array[part].copy() for name, array in self.past.items()}
        return Memory(part.stop - part.start, tuple(each[part] for each in self.state), past)

    def received(self, reward: np.ndarray | float) -> None:
        """Store the reward that followed the last action."""
        if self.past:
            self.past[LAST_REWARD][:] = reward


class Player:
    """A network with weights, which acts deterministically or by drawing.

    Evaluations and `veldt.load` use it, and exported modules are checked against it.
    """

    def __init__(self, network: Network, seed: int = 0) -> None:
        self.network = network.eval()
        self._flat = FlatParameters(network)
        self._random = np.random.default_rng(seed)

    def load(self, vector: np.ndarray) -> None:
        """Overwrite weights and statistics."""
        self._flat.load(vector)

    def start(self, width: int) -> Memory:
        """The memory of `width` new episodes."""
        past = {
            name: np.zeros((width, *entry.shape), entry.dtype)
            for name, entry in self.network.input_fields().items()
        }
        return Memory(width, self.network.initial_state(width), past)

    def act(
        self,
        observations: Mapping[str, np.ndarray],
        memory: Memory,
        first: np.ndarray,
        deterministic: bool = True,
    ) -> np.ndarray:
        """Choose actions as the environment receives them, [N, ...].

        Args:
            observations: Observations [N, ...] by name.
            memory: Memory of the N episodes; it is updated.
            first: Rows [N] at which an episode begins.
            deterministic: Take the best action instead of drawing one.
        """
        rows = {**observations, **memory.past}
        tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
        with torch.inference_mode():
            begins = torch.from_numpy(first)
            outputs, memory.state = self.network.step(tensors, memory.state, begins)
            params = _action_params(outputs).numpy()
            if ACTION_MASK in observations:
                params = np.where(observations[ACTION_MASK], params, np.float32(MASKED_LOGIT))
            action = self._best(params) if deterministic else self._drawn(params)
        if memory.past:
            memory.past[LAST_ACTION][:] = action
        return self.network.env_action(action)

    def _best(self, params: np.ndarray) -> np.ndarray:
        """The best action of each row, without exploration."""
        network = self.network
        if isinstance(network, QNetwork):
            return params.argmax(-1)
        if isinstance(network, SACNetwork):
            mean = params[:, : params.shape[1] // 2]
            return np.tanh(mean).reshape(-1, *network.spec.action.shape)
        if network.distribution is None:
            return params
        return network.distribution.mode(torch.from_numpy(params)).numpy()

    def _drawn(self, params: np.ndarray) -> np.ndarray:
        network = self.network
        if isinstance(network, SACNetwork):
            shape = (len(params), params.shape[1] // 2)
            noise = torch.from_numpy(self._random.standard_normal(shape, dtype=np.float32))
            return network.draw(torch.from_numpy(params), noise)[0].numpy()
        if isinstance(network, QNetwork):
            keys = self._random.random(params.shape)
            keys[params <= MASKED_LOGIT] = -1.0
            explore = self._random.random(len(params)) < Q_RANDOM_SHARE
            return np.where(explore, keys.argmax(-1), params.argmax(-1))
        if network.distribution is None:
            return params
        return network.distribution.sample(params, self._random)


def _action_params(outputs: Outputs) -> Tensor:
    """The output that determines actions: logits, Q-values, parameters or the action itself."""
    if isinstance(outputs, PolicyValueOutput):
        return outputs.logits
    if isinstance(outputs, QOutput):
        return outputs.q_values
    return outputs.params if isinstance(outputs, SACOutput) else outputs.action
