# SPDX-License-Identifier: Apache-2.0
"""Encoders, recurrent cores, heads and action distributions; weights are one flat vector."""

from veldt.networks.continuous import (
    DPGNetwork,
    DPGOutput,
    SACNetwork,
    SACOutput,
    TD3Network,
    TD3Output,
    TwinCriticNetwork,
)
from veldt.networks.distributions import MASKED_LOGIT, Gaussian, TanhGaussian, make_distribution
from veldt.networks.factory import NetworkFactory
from veldt.networks.first_weights import FirstWeights, tensors_of
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
    make_network,
    masked_q,
)
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.networks.normalizers import load_moment_sums, moment_sums
from veldt.networks.numpy_step import Outputs, acting_step
from veldt.networks.options import NetworkOptions
from veldt.networks.player import Memory, Player

__all__ = [
    "LAST_ACTION",
    "LAST_REWARD",
    "MASKED_LOGIT",
    "Categorical",
    "DPGNetwork",
    "DPGOutput",
    "Distribution",
    "FirstWeights",
    "FlatParameters",
    "Gaussian",
    "Memory",
    "MultiCategorical",
    "Network",
    "NetworkOptions",
    "NetworkFactory",
    "Outputs",
    "Player",
    "PolicyValueNetwork",
    "PolicyValueOutput",
    "QNetwork",
    "QOutput",
    "SACNetwork",
    "SACOutput",
    "TD3Network",
    "TD3Output",
    "TanhGaussian",
    "TwinCriticNetwork",
    "acting_step",
    "load_moment_sums",
    "make_distribution",
    "make_network",
    "masked_q",
    "moment_sums",
    "tensors_of",
]
