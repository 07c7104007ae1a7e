# SPDX-License-Identifier: Apache-2.0
"""IMPALA with a loss of your own: veldt train examples/own_loss.py --env CartPole-v1"""

from dataclasses import dataclass, replace

from torch.nn.functional import smooth_l1_loss

from veldt import extend
from veldt.architectures import impala


@dataclass(eq=False)
class HuberActorCritic(extend.Objective):
    options: extend.ActorCriticOptions

    def open(self, network):
        self.network, self.reader = network, extend.TrajectoryReader(network)

    def __call__(self, batch):
        seen = self.reader.evaluate(batch)  # the batch as the network sees it now, [T, B]
        targets = extend.vtrace(seen.log_rhos, seen.rows, self.options.traces)
        valid, advantages = ~seen.ignored, targets.advantages
        advantages = (advantages - advantages[valid].mean()) / (advantages[valid].std() + 1e-8)
        policy = extend.reduce_over_valid(-seen.log_probs * advantages, valid)
        value = extend.reduce_over_valid(
            smooth_l1_loss(seen.values, targets.vs, reduction="none"), valid
        )
        entropy = extend.reduce_over_valid(self.network.distribution.entropy(seen.logits), valid)
        total = policy + 0.5 * value - self.options.entropy_coefficient * entropy
        return extend.Loss(total, {"policy": policy, "value": value, "entropy": entropy})


def build(config, problem):
    topology = impala.ARCHITECTURE.build(config, problem)
    for learner in topology.of("learner"):
        learner.role = replace(learner.role, objective=HuberActorCritic(config.loss))
    return topology


ARCHITECTURE = replace(impala.ARCHITECTURE, name="own_loss", build=build)
