# SPDX-License-Identifier: Apache-2.0
"""Encoders, recurrent cores, heads and action distributions; weights are one flat vector."""

from veldt.networks.acting import Memory, Outputs, Player, acting_step
from veldt.networks.distributions import MASKED_LOGIT, Gaussian, TanhGaussian, make_distribution
from veldt.networks.factory import FirstWeights, NetworkFactory, tensors_of
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    ActionOutput,
    BoundedActionNetwork,
    DPGNetwork,
    PolicyValueNetwork,
    PolicyValueOutput,
    QOutput,
    SACNetwork,
    SACOutput,
    TD3Network,
    make_network,
    masked_q,
)
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.networks.normalizers import load_moment_sums, moment_sums
from veldt.networks.options import NetworkOptions

__all__ = [
    "LAST_ACTION",
    "LAST_REWARD",
    "MASKED_LOGIT",
    "ActionOutput",
    "BoundedActionNetwork",
    "DPGNetwork",
    "FirstWeights",
    "FlatParameters",
    "Gaussian",
    "Memory",
    "Network",
    "NetworkFactory",
    "NetworkOptions",
    "Outputs",
    "Player",
    "PolicyValueNetwork",
    "PolicyValueOutput",
    "QOutput",
    "SACNetwork",
    "SACOutput",
    "TD3Network",
    "TanhGaussian",
    "acting_step",
    "load_moment_sums",
    "make_distribution",
    "make_network",
    "masked_q",
    "moment_sums",
    "tensors_of",
]
