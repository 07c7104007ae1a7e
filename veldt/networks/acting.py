# SPDX-License-Identifier: Apache-2.0
"""Acting with a network: a player with memory, and forward passes of small networks in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.distributions import MASKED_LOGIT
from veldt.networks.encoders import FlatEncoder
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    HEADS,
    LEAST_VALUE_VARIANCE,
    ActionOutput,
    BoundedActionNetwork,
    Observations,
    PolicyGroup,
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
    SACNetwork,
    SACOutput,
)
from veldt.networks.layers import IN_PLACE, MLP, State
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.networks.normalizers import CLIP, EPSILON, RunningMoments
from veldt.types import ACTION_MASK

Outputs = PolicyValueOutput | QOutput | ActionOutput | SACOutput
Rows = Callable[[np.ndarray], np.ndarray]
Head = Callable[[np.ndarray, Observations], Outputs]

Q_RANDOM_SHARE = 0.05
"""Share of random actions when a Q network plays stochastically, as DQN was evaluated in 2015."""
_MOST_ROWS = 64
_MOST_PRODUCTS = 64**3  # of a layer; for more, OpenBLAS starts threads on the cores of other nodes
_ACTIVATIONS: dict[Any, Any] = {
    IN_PLACE["tanh"]: np.tanh,
    IN_PLACE["relu"]: partial(np.maximum, 0.0),
}


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
        self._step = acting_step(network)
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
            outputs, memory.state = self._step(tensors, memory.state, torch.from_numpy(first))
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


def acting_step(network: Network) -> Callable[[Observations, State, Tensor], tuple[Outputs, State]]:
    """Return `network.step` without gradients, in NumPy where that is faster.

    For a few rows and a small MLP, calling torch takes several times as long as the computation.
    Call this once the weights are in their final memory: it reads them in place.
    """
    if isinstance(network, PolicyGroup):
        steps = [acting_step(each) for each in network.policies]
        return lambda *rows: network.picked(rows[0], [step(*rows) for step in steps])
    in_numpy = numpy_step(network)
    if in_numpy is None:
        return network.step
    most = most_rows(network)

    def step(observations: Observations, state: State, first: Tensor) -> tuple[Outputs, State]:
        if len(first) > most:
            return network.step(observations, state, first)
        with np.errstate(over="ignore", invalid="ignore"):  # as torch does; NaN is found elsewhere
            return in_numpy(observations), state

    return step


def most_rows(network: Network) -> int:
    """Rows up to which NumPy is faster."""
    sizes = [each.weight.numel() for each in network.modules() if isinstance(each, nn.Linear)]
    return min(_MOST_ROWS, _MOST_PRODUCTS // max(sizes))


def numpy_step(network: Network) -> Callable[[Observations], Outputs] | None:
    """The outputs in NumPy, for networks on the CPU that read one vector; None for others."""
    actor = network.actor_part if isinstance(network, BoundedActionNetwork) else None
    encoder = network.encoder if actor is None else actor["encoder"]
    has_past = network.core is not None or network.config.last_action_and_reward
    if has_past or not isinstance(encoder, FlatEncoder) or len(encoder.leaves) != 1:
        return None
    if type(network) not in HEADS.values():  # a user's own, whose outputs are in torch only
        return None
    [leaf] = encoder.leaves
    if leaf.kind != "vector" or leaf.dtype == "uint8" or not next(network.parameters()).is_cpu:
        return None
    moments = None
    if network.normalizer is not None:
        moments = network.normalizer.vector_moments()[leaf.name]
    name, trunk, head = leaf.name, _mlp(encoder.mlp), _head(network)

    def step(observations: Observations) -> Outputs:
        rows = observations[name].numpy().astype(np.float32, copy=False)
        if moments is not None:
            rows = _normalized(rows, moments)
        return head(trunk(rows.reshape(len(rows), -1)), observations)

    return step


def _normalized(rows: np.ndarray, moments: RunningMoments) -> np.ndarray:
    centred = rows - moments.mean.numpy()
    centred /= np.sqrt(moments.variance.numpy() + np.float32(EPSILON))
    return np.clip(centred, np.float32(-CLIP), np.float32(CLIP), out=centred)


def _linear(layer: nn.Module) -> Rows:
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()

    def run(rows: np.ndarray) -> np.ndarray:
        result = rows @ weight
        result += bias
        return result

    return run


def _layer_norm(norm: nn.Module) -> Callable[[np.ndarray], None]:
    assert isinstance(norm, nn.LayerNorm)
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()

    def run(rows: np.ndarray) -> None:
        rows -= rows.mean(1, keepdims=True)
        rows /= np.sqrt(np.square(rows).mean(1, keepdims=True) + np.float32(norm.eps))
        rows *= weight
        rows += bias

    return run


def _mlp(mlp: MLP) -> Rows:
    layers, activate = [_linear(layer) for layer in mlp.layers], _ACTIVATIONS[mlp.activation]
    norms = [_layer_norm(norm) for norm in mlp.norms]

    def run(rows: np.ndarray) -> np.ndarray:
        for index, layer in enumerate(layers):
            rows = layer(rows)
            if norms:
                norms[index](rows)
            activate(rows, out=rows)
        return rows

    return run


def _head(network: Network) -> Head:
    if isinstance(network, PolicyValueNetwork):
        return _policy_and_value(network)
    if isinstance(network, QNetwork):
        return _q_values(network)
    assert isinstance(network, BoundedActionNetwork)
    linear, shape = _linear(network.actor_part["head"]), network.spec.action.shape
    is_soft = isinstance(network, SACNetwork)

    def head(features: np.ndarray, _: Observations) -> Outputs:
        params = linear(features)
        mean = params[:, : params.shape[1] // 2] if is_soft else params
        action = torch.from_numpy(np.tanh(mean).reshape(-1, *shape))
        return SACOutput(action, torch.from_numpy(params)) if is_soft else ActionOutput(action)

    return head


def _policy_and_value(network: PolicyValueNetwork) -> Head:
    linear, count, moments = _linear(network.head), network.num_params, network.value_moments
    least = np.float32(LEAST_VALUE_VARIANCE)

    def head(features: np.ndarray, observations: Observations) -> Outputs:
        both = linear(features)
        logits, value = both[:, :count], np.ascontiguousarray(both[:, count])
        if moments is not None:
            variance = np.maximum(moments.variance.numpy(), least)
            value = moments.mean.numpy() + value * np.sqrt(variance)
        if ACTION_MASK in observations:
            logits[~observations[ACTION_MASK].numpy()] = MASKED_LOGIT
        return PolicyValueOutput(torch.from_numpy(logits), torch.from_numpy(value))

    return head


def _q_values(network: QNetwork) -> Head:
    if not network.config.dueling:
        linear = _linear(network.head)
        return lambda features, _: QOutput(torch.from_numpy(linear(features)))
    streams, width = _mlp(network.streams), network.width
    value, advantage = _linear(network.value), _linear(network.advantage)

    def dueling(features: np.ndarray, _: Observations) -> Outputs:
        both = streams(features)
        gains = advantage(both[:, width:])
        q_values = value(both[:, :width]) + gains - gains.mean(1, keepdims=True)
        return QOutput(torch.from_numpy(q_values))

    return dueling
