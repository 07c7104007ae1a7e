# SPDX-License-Identifier: Apache-2.0
"""PPO's clip in A2C's wiring: veldt train examples/own_passes.py --env CartPole-v1"""

from dataclasses import dataclass, replace

import torch

from veldt import extend
from veldt.architectures import a2c


@dataclass(eq=False)
class ClippedPasses(extend.Objective):
    def open(self, network):
        self.network, self.reader = network, extend.TrajectoryReader(network)
        self.random = torch.Generator().manual_seed(self.seed)

    def passes(self, batch):  # prepared once, then four passes over four shuffled minibatches
        seen = self.reader.evaluate(batch)
        ends = (seen.rows.terminated, seen.rows.truncated, seen.ignored)
        returns = extend.n_step_returns(seen.rows.rewards, seen.rows.next_values, *ends, gamma=0.99)
        rows = {name: batch[name][:-1] for name in (*self.network.input_names, "first", "action")}
        rows |= {"before": seen.behaviour, "return": returns, "gain": returns - seen.rows.values}
        parts = extend.Minibatches(rows, {}, 4, whole_columns=False, counted=~seen.ignored)
        for _ in range(4):
            yield from parts.shuffled(self.random)

    def __call__(self, batch):
        rows = extend.select_rows(batch, whole_columns=False)
        outputs, _ = self.network.step(rows, (), rows["first"])
        log_probs = self.network.distribution.log_prob(outputs.logits, rows["action"])
        ratio = (log_probs - rows["before"]).exp()
        policy = -torch.minimum(ratio * rows["gain"], ratio.clamp(0.8, 1.2) * rows["gain"]).mean()
        value = 0.5 * (rows["return"] - outputs.value).square().mean()
        return extend.Loss(policy + 0.5 * value, {"policy": policy, "value": value})


def build(config, problem):
    topology = a2c.ARCHITECTURE.build(config, problem)
    for learner in topology.of("learner"):
        learner.role = replace(learner.role, objective=ClippedPasses())
    return topology


ARCHITECTURE = replace(a2c.ARCHITECTURE, name="own_passes", build=build)
