# SPDX-License-Identifier: Apache-2.0
"""A network over a batch of trajectories: outputs of every row, values of true successors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from veldt.algorithms.returns import Rows
from veldt.networks import Network
from veldt.objectives import Tensors
from veldt.types import LAST_ACTION, LAST_REWARD


class Evaluated(NamedTuple):
    """A batch as the network sees it now, [T, B, ...]."""

    logits: Tensor
    values: Tensor
    log_probs: Tensor
    behaviour: Tensor
    """Log probabilities under the policy that acted, without gradient."""
    log_rhos: Tensor
    """log pi - log mu, without gradient."""
    rows: Rows
    ignored: Tensor


class TrajectoryReader:
    """Unrolls `network` over [T+1, B] from the stored recurrent state."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._leaves = [leaf.name for leaf in network.spec.observation]
        self._states = [f"state.{name}" for name in network.state_fields()]
        self._same_step = network.spec.same_step_reset

    def constants(self, options: Hashable) -> Hashable | None:
        """The constants of an objective with these options: where a batch may contain the ends of
        episodes, `following` looks for them before it goes on."""
        return None if self._same_step else options

    def unroll(self, batch: Tensors) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs of all rows and the recurrent states after each."""
        state = tuple(batch[name] for name in self._states)
        return self._network.unroll(batch, state, batch["first"])

    def evaluate(self, batch: Tensors) -> Evaluated:
        """A batch of policy and value: the bootstrap row serves only its predecessor."""
        network = self._network
        assert network.distribution is not None
        outputs, states = self.unroll(batch)
        logits, values, action = outputs.logits[:-1], outputs.value[:-1], batch["action"][:-1]
        log_probs = network.distribution.log_prob(logits, action)
        flags = (batch["terminated"][:-1], batch["truncated"][:-1], batch["ignored"][:-1])
        with torch.no_grad():
            behaviour = network.distribution.log_prob(batch["behaviour_logits"][:-1], action)
            rewards = batch["reward"][:-1] * network.reward_scale()
            following = self.following(batch, outputs.value, states, "value")
            log_rhos = log_probs.detach() - behaviour
        rows = Rows(rewards, values.detach(), following, *flags)
        return Evaluated(logits, values, log_probs, behaviour, log_rhos, rows, flags[-1])

    @torch.no_grad()
    def following(
        self, batch: Tensors, entries: Tensor, states: tuple[Tensor, ...], output: str
    ) -> Tensor:
        """The network's `output` at each row's true successor, [T, B, ...], from that of all rows.
        Where the environment resets within the step, the next row belongs to another episode and
        the final observation takes its place."""
        following = entries[1:].detach()
        if not self._same_step or not bool(batch["truncated"][:-1].any()):
            return following
        rows = batch["truncated"][:-1].nonzero(as_tuple=True)
        finals = {name: batch["final_" + name][rows] for name in self._leaves}
        finals[LAST_ACTION], finals[LAST_REWARD] = batch["action"][rows], batch["reward"][rows]
        after = tuple(state[rows] for state in states)
        not_first = torch.zeros(len(rows[0]), dtype=torch.bool, device=entries.device)
        last, _ = self._network.step(finals, after, not_first)
        following = following.clone()
        following[rows] = getattr(last, output)
        return following
