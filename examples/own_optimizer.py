# SPDX-License-Identifier: Apache-2.0
"""A2C with an optimizer of torch and a learning rate that rises over the first 100 updates.

veldt train examples/own_optimizer.py --env CartPole-v1 --target-return 475
"""

from dataclasses import dataclass, replace

import torch

from veldt.architectures import a2c
from veldt.extend import FlatParameters, Gradient, GradientSink, NodeContext


@dataclass(eq=False)
class AdamW(GradientSink):
    learning_rate: float

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self.weights = flat.vector[: flat.num_trained]  # running statistics follow them
        self.adam = torch.optim.AdamW([self.weights], weight_decay=1e-4)

    def apply(self, gradient: Gradient) -> int:
        [group], warm = self.adam.param_groups, min(1.0, (gradient.version + 1) / 100)
        group["lr"] = self.learning_rate * warm * gradient.learning_rate_scale
        self.weights.grad = gradient.vector
        self.adam.step()
        return gradient.version + 1


def build(config, problem):
    topology = a2c.ARCHITECTURE.build(config, problem)
    for learner in topology.of("learner"):
        sink = AdamW(config.optimizer.learning_rate)
        learner.role = replace(learner.role, gradients=sink)
    return topology


ARCHITECTURE = replace(a2c.ARCHITECTURE, name="own_optimizer", build=build)
