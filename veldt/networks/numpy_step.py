# SPDX-License-Identifier: Apache-2.0
"""Forward passes of small networks over a few rows in NumPy.

There, calling torch takes several times as long as the computation. Weights and statistics are read
in place, so that new ones need no notice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.continuous import (
    DPGNetwork,
    DPGOutput,
    SACNetwork,
    SACOutput,
    TD3Output,
    TwinCriticNetwork,
)
from veldt.networks.cores import State
from veldt.networks.distributions import MASKED_LOGIT
from veldt.networks.encoders import FlatEncoder
from veldt.networks.heads import (
    LEAST_VALUE_VARIANCE,
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
)
from veldt.networks.layers import IN_PLACE, MLP
from veldt.networks.network import Network
from veldt.networks.normalizers import CLIP, EPSILON, RunningMoments
from veldt.types import ACTION_MASK

Outputs = PolicyValueOutput | QOutput | DPGOutput | SACOutput | TD3Output
Observations = dict[str, Tensor]
Rows = Callable[[np.ndarray], np.ndarray]
Head = Callable[[np.ndarray, Observations], Outputs]
_MOST_ROWS = 64
_MOST_PRODUCTS = 64**3  # of a layer; for more, OpenBLAS starts threads on the cores of other nodes
_ACTIVATIONS: dict[Any, Any] = {
    IN_PLACE["tanh"]: np.tanh,
    IN_PLACE["relu"]: partial(np.maximum, 0.0),
}


def acting_step(
    network: Network,
) -> Callable[[Observations, State, Tensor], tuple[Outputs, State]]:
    """`network.step` without gradients, in NumPy where that is faster.

    To be called once the weights are where they stay.
    """
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
    if isinstance(network, DPGNetwork | TwinCriticNetwork):
        encoder = network.actor_part["encoder"]
    else:
        encoder = network.encoder
    has_past = network.core is not None or network.config.last_action_and_reward
    if has_past or not isinstance(encoder, FlatEncoder) or len(encoder.leaves) != 1:
        return None
    [leaf] = encoder.leaves
    if leaf.kind != "vector" or leaf.dtype == "uint8" or not next(network.parameters()).is_cpu:
        return None
    normalize: Callable[[np.ndarray], np.ndarray] = _as_it_is
    if network.normalizer is not None:
        normalize = _normalizer(network.normalizer.vector_moments()[leaf.name])
    name, trunk, head = leaf.name, _mlp(encoder.mlp), _head(network)

    def step(observations: Observations) -> Outputs:
        rows = normalize(observations[name].numpy().astype(np.float32, copy=False))
        return head(trunk(rows.reshape(len(rows), -1)), observations)

    return step


def _as_it_is(rows: np.ndarray) -> np.ndarray:
    return rows


def _linear(layer: nn.Module) -> Rows:
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()

    def run(rows: np.ndarray) -> np.ndarray:
        result = rows @ weight
        result += bias
        return result

    return run


def _mlp(mlp: MLP) -> Rows:
    layers, activate = [_linear(layer) for layer in mlp.layers], _ACTIVATIONS[mlp.activation]

    def run(rows: np.ndarray) -> np.ndarray:
        for layer in layers:
            rows = layer(rows)
            activate(rows, out=rows)
        return rows

    return run


def _normalizer(moments: RunningMoments) -> Rows:
    mean, variance = moments.mean.numpy(), moments.variance.numpy()
    epsilon, high = np.float32(EPSILON), np.float32(CLIP)

    def run(rows: np.ndarray) -> np.ndarray:
        centred = rows - mean
        centred /= np.sqrt(variance + epsilon)
        return np.clip(centred, -high, high, out=centred)

    return run


def _head(network: Network) -> Head:
    if isinstance(network, PolicyValueNetwork):
        return _policy_and_value(network)
    if isinstance(network, QNetwork):
        return _q_values(network)
    assert isinstance(network, DPGNetwork | TwinCriticNetwork)
    linear, shape = _linear(network.actor_part["head"]), network.spec.action.shape
    is_soft = isinstance(network, SACNetwork)
    kind = DPGOutput if isinstance(network, DPGNetwork) else TD3Output

    def head(features: np.ndarray, _: Observations) -> Outputs:
        params = linear(features)
        mean = params[:, : params.shape[1] // 2] if is_soft else params
        action = torch.from_numpy(np.tanh(mean).reshape(-1, *shape))
        return SACOutput(action, torch.from_numpy(params)) if is_soft else kind(action)

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
