# SPDX-License-Identifier: Apache-2.0
"""A small network over a few rows, in NumPy: there, calling torch costs several times what there is
to compute. The weights are read where they lie, so whoever loads new ones need not say so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.cores import State
from veldt.networks.distributions import MASKED_LOGIT
from veldt.networks.encoders import FlatEncoder
from veldt.networks.heads import (
    DPGNetwork,
    DPGOutput,
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
)
from veldt.networks.layers import in_numpy
from veldt.networks.network import Network
from veldt.networks.twin_critics import SACNetwork, SACOutput, TD3Network, TD3Output
from veldt.types import ACTION_MASK, ObservationLeaf

Outputs = PolicyValueOutput | QOutput | DPGOutput | SACOutput | TD3Output
Observations = dict[str, Tensor]
Step = Callable[[Observations, State, Tensor], tuple[Outputs, State]]
"""As Network.step."""
_MOST_ROWS = 64
_MOST_PRODUCTS = 64**3  # of a layer; for more, OpenBLAS wakes threads that others need the cores of


def acting_step(network: Network) -> Step:
    """`network.step` without gradients, by the quicker way for each number of rows. Ask for it when
    the weights lie where they are to stay."""
    few = few_rows(network)
    if few is None:
        return network.step
    most = most_rows(network)

    def step(observations: Observations, state: State, first: Tensor) -> tuple[Outputs, State]:
        if len(first) > most:
            return network.step(observations, state, first)
        with np.errstate(over="ignore", invalid="ignore"):  # as torch does; others watch for NaN
            return few(observations), state

    return step


def most_rows(network: Network) -> int:
    sizes = [each.weight.numel() for each in network.modules() if isinstance(each, nn.Linear)]
    return min(_MOST_ROWS, _MOST_PRODUCTS // max(sizes))


def few_rows(network: Network) -> Callable[[Observations], Outputs] | None:
    """For networks on the CPU whose outputs follow from one vector alone; None for others."""
    encoder = _acting_encoder(network)
    has_past = network.core is not None or network.config.last_action_and_reward
    if has_past or not isinstance(encoder, FlatEncoder) or len(encoder.leaves) != 1:
        return None
    [leaf], head = encoder.leaves, _head(network)
    if head is None or leaf.kind != "vector" or not next(network.parameters()).is_cpu:
        return None
    read, trunk = _reader(leaf, network), encoder.mlp.in_numpy()
    return lambda observations: head(trunk(read(observations)), observations)


def _acting_encoder(network: Network) -> nn.Module | None:
    if isinstance(network, PolicyValueNetwork | QNetwork):
        return network.encoder
    part = getattr(network, "actor_part", None)
    return None if part is None else part["encoder"]


def _reader(leaf: ObservationLeaf, network: Network) -> Callable[[Observations], np.ndarray]:
    """The vector [N, n] that the first layer sees."""
    name, normalizer = leaf.name, network.normalizer
    if normalizer is not None:
        normalize = normalizer.in_numpy(name)
        return lambda observations: _flat(normalize(observations[name].numpy()))
    if leaf.dtype == "uint8":
        return lambda observations: _flat(observations[name].numpy() * np.float32(1.0 / 255.0))
    return lambda observations: _flat(observations[name].numpy())


def _flat(rows: np.ndarray) -> np.ndarray:
    rows = rows if rows.dtype == np.float32 else rows.astype(np.float32)
    return rows if rows.ndim == 2 else rows.reshape(len(rows), -1)


Head = Callable[[np.ndarray, Observations], Outputs]


def _head(network: Network) -> Head | None:
    if isinstance(network, PolicyValueNetwork):
        return _policy_and_value(network)
    if isinstance(network, QNetwork):
        return _q_values(network)
    if isinstance(network, SACNetwork):
        return _soft_policy(network)
    if isinstance(network, DPGNetwork | TD3Network):
        return _deterministic_policy(network)
    return None


def _policy_and_value(network: PolicyValueNetwork) -> Head:
    linear, count, value_of = in_numpy(network.head), network.num_params, network.value_in_numpy()

    def head(features: np.ndarray, observations: Observations) -> Outputs:
        both = linear(features)
        logits, value = both[:, :count], value_of(both[:, count])
        if ACTION_MASK in observations:
            logits[~observations[ACTION_MASK].numpy()] = MASKED_LOGIT
        return PolicyValueOutput(torch.from_numpy(logits), torch.from_numpy(value))

    return head


def _q_values(network: QNetwork) -> Head:
    if not network.config.dueling:
        linear = in_numpy(network.head)
        return lambda features, _: QOutput(torch.from_numpy(linear(features)))
    streams, width = network.streams.in_numpy(), network.width
    value, advantage = in_numpy(network.value), in_numpy(network.advantage)

    def dueling(features: np.ndarray, _: Observations) -> Outputs:
        both = streams(features)
        gains = advantage(both[:, width:])
        q_values = value(both[:, :width]) + gains - gains.mean(1, keepdims=True)
        return QOutput(torch.from_numpy(q_values))

    return dueling


def _soft_policy(network: SACNetwork) -> Head:
    linear, shape = in_numpy(network.actor_part["head"]), network.spec.action.shape

    def head(features: np.ndarray, _: Observations) -> Outputs:
        params = linear(features)
        mean = np.tanh(params[:, : params.shape[1] // 2]).reshape(-1, *shape)
        return SACOutput(torch.from_numpy(mean), torch.from_numpy(params))

    return head


def _deterministic_policy(network: DPGNetwork | TD3Network) -> Head:
    linear, shape = in_numpy(network.actor_part["head"]), network.spec.action.shape
    kind = DPGOutput if isinstance(network, DPGNetwork) else TD3Output
    return lambda features, _: kind(torch.from_numpy(np.tanh(linear(features)).reshape(-1, *shape)))
