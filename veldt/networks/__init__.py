# SPDX-License-Identifier: Apache-2.0
"""Encoders, recurrent cores, heads and action distributions; all weights views into one vector."""

from veldt.networks.distributions import (
    MASKED_LOGIT,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    make_distribution,
)
from veldt.networks.factory import NetworkFactory
from veldt.networks.few_rows import Outputs, acting_step
from veldt.networks.first_weights import FirstWeights, tensors_of
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import (
    DPGNetwork,
    DPGOutput,
    PolicyValueNetwork,
    PolicyValueOutput,
    QNetwork,
    QOutput,
    make_network,
    masked_q,
)
from veldt.networks.network import LAST_ACTION, LAST_REWARD, Network
from veldt.networks.normalizers import load_moment_sums, moment_sums
from veldt.networks.options import NetworkOptions
from veldt.networks.player import Memory, Player
from veldt.networks.twin_critics import (
    SACNetwork,
    SACOutput,
    TD3Network,
    TD3Output,
    TwinCriticNetwork,
)

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
