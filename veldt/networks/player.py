# SPDX-License-Identifier: Apache-2.0
"""Acts with a network's weights: rows of observations in, actions out. Evaluations, `veldt.load`
and what is exported are judged by this one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from veldt.networks.cores import State
from veldt.networks.distributions import MASKED_LOGIT
from veldt.networks.encoders import FlatEncoder
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    DPGNetwork,
    DPGOutput,
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
)
from veldt.networks.layers import in_numpy
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.networks.twin_critics import SACNetwork, SACOutput, TD3Output, TwinCriticNetwork
from veldt.types import ACTION_MASK

Outputs: TypeAlias = PolicyValueOutput | QOutput | DPGOutput | SACOutput | TD3Output

Q_RANDOM_SHARE = 0.05
"""Share of random actions when a Q network plays stochastically, as DQN was evaluated in 2015."""
_MOST_PLAIN_ROWS = 64  # where a matrix product begins to cost more than calling it


@dataclass
class Memory:
    """What a policy remembers of `width` episodes that go on side by side."""

    width: int
    state: State = ()
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """The last action and reward, for networks that read them."""

    @staticmethod
    def joined(memories: Sequence[Memory]) -> Memory:
        """Of all these episodes side by side."""
        state = tuple(map(torch.cat, zip(*(memory.state for memory in memories), strict=True)))
        past = {
            name: np.concatenate([memory.past[name] for memory in memories])
            for name in memories[0].past
        }
        return Memory(sum(memory.width for memory in memories), state, past)

    def rows(self, part: slice) -> Memory:
        """Of some of the episodes."""
        past = {name: array[part].copy() for name, array in self.past.items()}
        return Memory(part.stop - part.start, tuple(each[part] for each in self.state), past)

    def received(self, reward: np.ndarray | float) -> None:
        """Keep the reward that followed the last action."""
        if self.past:
            self.past[LAST_REWARD][:] = reward


class Player:
    """Owns a network and its weights."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        self.network = network.eval()
        self._flat = FlatParameters(network)
        self._plain = plain_pass(network)
        self._random = np.random.default_rng(seed)

    def load(self, vector: np.ndarray) -> None:
        """Take these weights and statistics."""
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
        """Rows [N, ...] by the names of the network's inputs -> actions [N, ...] as the environment
        receives them. `first` [N]: where an episode begins."""
        with torch.inference_mode():
            if self._plain is not None and len(first) <= _MOST_PLAIN_ROWS:
                numbers = self._plain(observations)
            else:
                numbers = self._in_torch(observations, memory, first)
            if ACTION_MASK in observations:
                numbers = np.where(observations[ACTION_MASK], numbers, np.float32(MASKED_LOGIT))
            action = self._best(numbers) if deterministic else self._drawn(numbers)
        if memory.past:
            memory.past[LAST_ACTION][:] = action
        return self.network.env_action(action)

    def _in_torch(
        self, observations: Mapping[str, np.ndarray], memory: Memory, first: np.ndarray
    ) -> np.ndarray:
        rows = {**observations, **memory.past}
        tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
        begins = torch.from_numpy(first)
        outputs, memory.state = self.network.step(tensors, memory.state, begins)
        return policy_numbers(outputs).numpy()

    def _best(self, numbers: np.ndarray) -> np.ndarray:
        """What the head thinks best, without exploration."""
        network = self.network
        if isinstance(network, QNetwork):
            return numbers.argmax(-1)
        if isinstance(network, SACNetwork):
            mean = numbers[:, : numbers.shape[1] // 2]
            return np.tanh(mean).reshape(-1, *network.spec.action.shape)
        if network.distribution is None:
            return numbers
        return network.distribution.mode(torch.from_numpy(numbers)).numpy()

    def _drawn(self, numbers: np.ndarray) -> np.ndarray:
        network = self.network
        if isinstance(network, SACNetwork):
            shape = (len(numbers), numbers.shape[1] // 2)
            noise = torch.from_numpy(self._random.standard_normal(shape, dtype=np.float32))
            return network.draw(torch.from_numpy(numbers), noise)[0].numpy()
        if isinstance(network, QNetwork):
            keys = self._random.random(numbers.shape)
            keys[numbers <= MASKED_LOGIT] = -1.0
            explore = self._random.random(len(numbers)) < Q_RANDOM_SHARE
            return np.where(explore, keys.argmax(-1), numbers.argmax(-1))
        if network.distribution is None:
            return numbers
        return network.distribution.sample(numbers, self._random)


def policy_numbers(outputs: Outputs) -> Tensor:
    """What actions follow from: logits, Q-values, parameters of a normal, or the action itself."""
    if isinstance(outputs, PolicyValueOutput):
        return outputs.logits
    if isinstance(outputs, QOutput):
        return outputs.q_values
    return outputs.params if isinstance(outputs, SACOutput) else outputs.action


PlainPass = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Observations -> `policy_numbers`, in NumPy: for a few rows of a small network, calling torch
costs more than there is to compute. The weights are read where they lie."""


def plain_pass(network: Network) -> PlainPass | None:
    """For networks that follow from one vector alone; None for others."""
    own = isinstance(network, PolicyValueNetwork | QNetwork)
    encoder = network.encoder if own else network.actor_part["encoder"]  # type: ignore[index]
    has_past = network.core is not None or network.config.last_action_and_reward
    if has_past or not isinstance(encoder, FlatEncoder) or len(encoder.leaves) != 1:
        return None
    [leaf], normalizer, head = encoder.leaves, network.normalizer, _plain_head(network)
    if leaf.kind != "vector":
        return None
    trunk, name = encoder.mlp.in_numpy(), leaf.name
    if normalizer is None:
        return lambda observations: head(trunk(observations[name]))
    normalize = normalizer.in_numpy(name)
    return lambda observations: head(trunk(normalize(observations[name])))


def _plain_head(network: Network) -> Callable[[np.ndarray], np.ndarray]:
    if isinstance(network, PolicyValueNetwork):
        return in_numpy(network.head, rows=network.num_params)
    if isinstance(network, QNetwork) and network.config.dueling:
        streams, width = network.streams.in_numpy(), network.width
        value, advantage = in_numpy(network.value), in_numpy(network.advantage)

        def dueling(features: np.ndarray) -> np.ndarray:
            both = streams(features)
            gains = advantage(both[:, width:])
            return value(both[:, :width]) + gains - gains.mean(1, keepdims=True)

        return dueling
    if isinstance(network, QNetwork):
        return in_numpy(network.head)
    assert isinstance(network, DPGNetwork | TwinCriticNetwork)
    linear, shape = in_numpy(network.actor_part["head"]), network.spec.action.shape
    if isinstance(network, SACNetwork):
        return linear
    return lambda features: np.tanh(linear(features)).reshape(-1, *shape)
