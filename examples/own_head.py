# SPDX-License-Identifier: Apache-2.0
"""A2C with separate networks for policy and value.

veldt train examples/own_head.py --env CartPole-v1 --target-return 475
"""

from dataclasses import replace

from torch import nn

from veldt.architectures import a2c
from veldt.extend import PolicyValueNetwork, make_encoder


class TwoNetworks(PolicyValueNetwork):
    """The inherited trunk serves the policy; the value has an encoder of its own."""

    def __init__(self, config, spec, generator):
        super().__init__(config, spec, generator)
        self.value_encoder = make_encoder(config, spec, generator)
        self.value = nn.Linear(self.value_encoder.num_features, 1)

    def outputs(self, features, observations):
        both = super().outputs(features, observations)
        value = self.value(self.value_encoder(self.normalized(observations)))
        return both._replace(value=value.squeeze(1))


def build(config, problem):
    return a2c.ARCHITECTURE.build(config, replace(problem, heads={"policy_value": TwoNetworks}))


ARCHITECTURE = replace(a2c.ARCHITECTURE, name="own_head", build=build)
