# SPDX-License-Identifier: Apache-2.0
"""A network over a batch of trajectories: outputs of every row, values of true successors,
minibatches of rows or columns."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from veldt.losses import Tensors
from veldt.losses.returns import Rows
from veldt.networks import Network
from veldt.types import LAST_ACTION, LAST_REWARD

INDEX = "index"
"""Entry of a minibatch: which rows of the other entries belong to it."""


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
        """The constants of an objective with these options; None if `following` reads flags."""
        return None if self._same_step else options

    def unroll(self, batch: Tensors) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs of all rows and the recurrent states after each."""
        state = tuple(batch[name] for name in self._states)
        return self._network.unroll(batch, state, batch["first"])

    def evaluate(self, batch: Tensors) -> Evaluated:
        """A batch of policy and value: the bootstrap row serves only its predecessor."""
        distribution = self._network.distribution
        assert distribution is not None
        outputs, states = self.unroll(batch)
        logits, action = outputs.logits[:-1], batch["action"][:-1]
        log_probs = distribution.log_prob(logits, action)
        with torch.no_grad():
            behaviour = distribution.log_prob(batch["behaviour_logits"][:-1], action)
            log_rhos = log_probs.detach() - behaviour
        rows = self._rows(batch, outputs.value, states)
        values = outputs.value[:-1]
        return Evaluated(logits, values, log_probs, behaviour, log_rhos, rows, rows.ignored)

    @torch.no_grad()
    def recall(self, batch: Tensors) -> Evaluated:
        """The same for rows that acted with these very weights and stored their values.

        The network is evaluated on the last row only. Not for networks with memory."""
        network = self._network
        assert network.distribution is not None
        last = {name: batch[name][-1] for name in network.input_names}
        bootstrap, _ = network.step(last, (), batch["first"][-1])
        logits, values = batch["behaviour_logits"][:-1], batch["behaviour_value"][:-1]
        log_probs = network.distribution.log_prob(logits, batch["action"][:-1])
        rows = self._rows(batch, torch.cat((values, bootstrap.value[None])), ())
        nothing = torch.zeros_like(log_probs)
        return Evaluated(logits, values, log_probs, log_probs, nothing, rows, rows.ignored)

    @torch.no_grad()
    def _rows(self, batch: Tensors, values: Tensor, states: tuple[Tensor, ...]) -> Rows:
        """What happened, beside `values` of all T + 1 rows."""
        rewards = batch["reward"][:-1] * self._network.reward_scale()
        following = self.following(batch, values, states, "value")
        flags = (batch[name][:-1] for name in ("terminated", "truncated", "ignored"))
        return Rows(rewards, values[:-1].detach(), following, *flags)

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


class Minibatches:
    """Cuts prepared rows [T, B, ...] into `count` shuffled parts.

    Without memory the rows of all trajectories are mixed, and a minibatch is [n, ...]. With memory
    whole columns stay together, [T, n, ...], beside their `state.*` entries [n, ...]. A part is all
    rows and an index, so that gathering is recorded together with the loss. Rows outside `counted`
    [T, B] are left out, which is not possible with memory.
    """

    def __init__(
        self,
        rows: Tensors,
        states: Tensors,
        count: int,
        whole_columns: bool,
        counted: Tensor | None = None,
    ) -> None:
        steps, columns = next(iter(rows.values())).shape[:2]
        folded = rows if whole_columns else {k: v.flatten(0, 1) for k, v in rows.items()}
        self._all = {**folded, **states}
        self._items = columns if whole_columns else steps * columns
        self._places = None
        if counted is not None:
            self._places = counted.flatten().nonzero().squeeze(1)
            self._items = len(self._places)
        self._count = min(count, self._items)

    def shuffled(self, generator: torch.Generator) -> Iterator[Tensors]:
        """Every row once. Sizes differ by at most one row (or column)."""
        if self._count == 1 and self._places is None:
            yield self._all
            return
        device = next(iter(self._all.values())).device
        order = torch.randperm(self._items, generator=generator).to(device)
        if self._places is not None:
            order = self._places[order]
        for index in order.tensor_split(self._count):
            yield {**self._all, INDEX: index}


def select_rows(part: Tensors, whole_columns: bool) -> Tensors:
    """The rows of a minibatch, with `whole_columns` its columns of all steps."""
    if INDEX not in part:
        return part
    rows = dict(part)
    index = rows.pop(INDEX)
    return {
        name: entry.index_select(int(whole_columns and not name.startswith("state.")), index)
        for name, entry in rows.items()
    }
