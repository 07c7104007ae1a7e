# SPDX-License-Identifier: Apache-2.0
"""Policy and value from trajectories: A3C, A2C, GA3C, IMPALA and SEED's V-trace learner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veldt.algorithms.policy_gradient import policy_gradient_loss
from veldt.algorithms.vtrace import corrected_targets
from veldt.networks import Network
from veldt.objectives import Loss, Tensors
from veldt.types import LAST_ACTION, LAST_REWARD

_EPSILON_FLOOR = 1e-6


@dataclass(frozen=True)
class ActorCriticSettings:
    """How targets are corrected for lag and how the three losses are weighed."""

    gamma: float = 0.99
    """Discount per environment step."""
    correction: str = "vtrace"
    """Off-policy correction: vtrace, one_step, epsilon (a floor under pi) or none."""
    rho_bar: float = 1.0
    """Clip of the importance weight that decides which policy is evaluated."""
    c_bar: float = 1.0
    """Clip of the importance weight that decides how far corrections travel."""
    trace_lambda: float = 1.0
    """Decay of the trace; 1: full n-step corrections."""
    value_coefficient: float = 0.5
    """Weight of half the squared value error."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    reduction: str = "mean"
    """mean or sum over rows; learning rates are not portable between the two."""
    normalize_returns: bool = False
    """Scale rewards by the spread of the discounted return, as seen by all actors."""


class ActorCritic:
    """Loss over a batch of trajectories [T+1, B]."""

    def __init__(self, network: Network, config: ActorCriticSettings) -> None:
        self._network, self._config = network, config
        self._leaves = [leaf.name for leaf in network.spec.observation]
        self._states = [f"state.{name}" for name in network.state_fields()]
        self._same_step = network.spec.same_step_reset

    def __call__(self, batch: Tensors) -> Loss:
        config, network = self._config, self._network
        assert network.distribution is not None
        state = tuple(batch[name] for name in self._states)
        outputs, states = network.unroll(batch, state, batch["first"])
        logits, values, action = outputs.logits[:-1], outputs.value[:-1], batch["action"][:-1]
        log_probs = network.distribution.log_prob(logits, action)
        ignored = batch["ignored"][:-1]
        with torch.no_grad():
            behaviour = network.distribution.log_prob(batch["behaviour_logits"][:-1], action)
            targets = corrected_targets(
                config.correction,
                log_probs.detach() - behaviour,
                batch["reward"][:-1] * network.reward_scale(),
                values.detach(),
                self._next_values(batch, outputs.value.detach(), states),
                batch["terminated"][:-1],
                batch["truncated"][:-1],
                ignored,
                config.gamma,
                config.trace_lambda,
                config.rho_bar,
                config.c_bar,
            )
        loss = policy_gradient_loss(
            log_probs,
            targets.advantages,
            values,
            targets.vs,
            network.distribution.entropy(logits),
            ~ignored,
            config.value_coefficient,
            config.entropy_coefficient,
            config.reduction,
            _EPSILON_FLOOR if config.correction == "epsilon" else 0.0,
        )
        metrics = {"policy": loss.policy, "value": loss.value, "entropy": loss.entropy}
        return Loss(loss.total, metrics)

    def after_update(self, version: int) -> None: ...

    def _next_values(
        self, batch: Tensors, values: Tensor, states: tuple[Tensor, ...]
    ) -> Tensor:
        """V of each row's true successor. Where the environment resets within the step, the next
        row belongs to another episode and V(final observation) takes its place."""
        following = values[1:]
        if not self._same_step or not bool(batch["truncated"][:-1].any()):
            return following
        rows = batch["truncated"][:-1].nonzero(as_tuple=True)
        finals = {name: batch["final_" + name][:-1][rows] for name in self._leaves}
        finals[LAST_ACTION], finals[LAST_REWARD] = batch["action"][rows], batch["reward"][rows]
        after = tuple(state[:-1][rows] for state in states)
        not_first = torch.zeros(len(rows[0]), dtype=torch.bool, device=values.device)
        last, _ = self._network.step(finals, after, not_first)
        following = following.clone()
        following[rows] = last.value
        return following
