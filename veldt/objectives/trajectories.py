# SPDX-License-Identifier: Apache-2.0
"""A network over a batch of trajectories: outputs of every row, values of true successors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veldt.networks import Network
from veldt.objectives import Tensors
from veldt.types import LAST_ACTION, LAST_REWARD


class TrajectoryReader:
    """Unrolls `network` over [T+1, B] from the stored recurrent state."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._leaves = [leaf.name for leaf in network.spec.observation]
        self._states = [f"state.{name}" for name in network.state_fields()]
        self._same_step = network.spec.same_step_reset

    def unroll(self, batch: Tensors) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs of all rows and the recurrent states after each."""
        state = tuple(batch[name] for name in self._states)
        return self._network.unroll(batch, state, batch["first"])

    @torch.no_grad()
    def next_values(self, batch: Tensors, values: Tensor, states: tuple[Tensor, ...]) -> Tensor:
        """V of each row's true successor [T, B]."""
        return self.following(batch, values, states, "value")

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
