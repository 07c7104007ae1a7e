# SPDX-License-Identifier: Apache-2.0
"""A trained policy as one nn.Module from observations to actions, for training and export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from veldt.environments import Interface
from veldt.environments.spaces import action_offset
from veldt.networks import (
    LAST_ACTION,
    LAST_REWARD,
    MASKED_LOGIT,
    BoundedActionNetwork,
    Gaussian,
    Network,
    Outputs,
    PolicyValueOutput,
    QOutput,
    TanhGaussian,
)
from veldt.types import ACTION_MASK, ObservationLeaf

if TYPE_CHECKING:
    from veldt.environments.observations import Entry

T = TypeVar("T")
ACTION, FIRST, REWARD = "action", "first", "reward"
STATE, FRAMES, NEXT = "state.", "state.frames.", "next_"


def remembered(outputs: Mapping[str, T]) -> dict[str, T]:
    """The outputs of a call that are inputs of the next one."""
    return {name.removeprefix(NEXT): entry for name, entry in outputs.items() if NEXT in name}


class PolicyModule(nn.Module):
    """`forward` takes and returns tensors [N, ...] by name.

    Inputs: the observation ("observation", or "observation.<key>" for each entry of a Dict or
    Tuple) as the environment returns it; "action_mask" where there is one; for policies with a
    memory "first" (an episode begins), "state.*" (what the last call returned; anything where
    `first`) and, if they read it, "reward". Outputs: "action" without exploration, the outputs of
    the head ("logits" and "value", "q_values", "params"), and "next_state.*"."""

    low: Tensor
    high: Tensor

    def __init__(self, network: Network, interface: Interface, entries: Iterable[Entry]) -> None:
        super().__init__()
        self.network, self.entries = network, tuple(entries)
        self._depth, self._action = interface.frame_stack, network.spec.action
        offset = action_offset(interface.action_space)
        self._offset = None if offset is None else torch.from_numpy(np.asarray(offset))
        for name, bound in (("low", self._action.low), ("high", self._action.high)):
            values = torch.tensor(bound, dtype=torch.float32)
            if bound:
                values = values.reshape(self._action.shape)
            self.register_buffer(name, values, persistent=False)
        fields = network.state_fields()
        self._states = tuple(fields)
        self._past = tuple(network.input_fields())

    def inputs(self, batch: int = 2) -> dict[str, Tensor]:
        """A valid value for every input, in their order."""
        spec = self.network.spec
        found: dict[str, Tensor] = {}
        for entry in self.entries:
            leaf = entry.readers[0].leaf
            dtype = torch.float32 if leaf.kind == "vector" else _dtype(leaf.dtype)
            rows = np.broadcast_to(entry.origin, (batch, *entry.shape))
            found[entry.name] = torch.tensor(rows, dtype=dtype)
        if spec.action_mask_size:
            found[ACTION_MASK] = torch.ones((batch, spec.action_mask_size), dtype=torch.bool)
        if self._states or self._past or self._depth > 1:
            found[FIRST] = torch.ones(batch, dtype=torch.bool)
        for name, entry_field in self.network.input_fields().items():
            key = REWARD if name == LAST_REWARD else STATE + name
            dtype = _dtype(entry_field.dtype)
            found[key] = torch.zeros((batch, *entry_field.shape), dtype=dtype)
        for name, entry_field in self.network.state_fields().items():
            found[STATE + name] = torch.zeros((batch, *entry_field.shape))
        for leaf, _ in self._stacked():
            known = next(each for each in spec.observation if each.name == leaf.name)
            found[FRAMES + leaf.name] = torch.zeros(
                (batch, *known.shape), dtype=_dtype(known.dtype)
            )
        return found

    def _stacked(self) -> list[tuple[ObservationLeaf, Entry]]:
        """Leaves whose last frames are joined."""
        pairs = [(reader.leaf, entry) for entry in self.entries for reader in entry.readers]
        return [pair for pair in pairs if self._depth > 1 and pair[0].kind != "discrete"]

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = {
            reader.leaf.name: reader.view(inputs[entry.name]).to(_dtype(reader.leaf.dtype))  # type: ignore[arg-type, attr-defined]
            for entry in self.entries
            for reader in entry.readers
        }
        count = next(iter(rows.values())).shape[0]
        first = inputs.get(FIRST)
        if first is None:
            first = torch.zeros(count, dtype=torch.bool, device=self.low.device)
        memory: dict[str, Tensor] = {}
        for leaf, _ in self._stacked():
            rows[leaf.name] = self._pushed(inputs[FRAMES + leaf.name], rows[leaf.name], first)
            memory[FRAMES + leaf.name] = rows[leaf.name]
        if ACTION_MASK in inputs:
            rows[ACTION_MASK] = inputs[ACTION_MASK]
        if self._past:
            rows |= {LAST_ACTION: inputs[STATE + LAST_ACTION], LAST_REWARD: inputs[REWARD]}
        state = tuple(inputs[STATE + name] for name in self._states)
        outputs, state = self.network.step(rows, state, first)
        action = self._best(outputs, rows)
        memory |= {STATE + name: entry for name, entry in zip(self._states, state, strict=True)}
        memory = {NEXT + name: entry for name, entry in memory.items()}
        if self._past:
            memory[NEXT + STATE + LAST_ACTION] = action
        head = {name: entry for name, entry in outputs._asdict().items() if name != ACTION}
        return {ACTION: self._for_environment(action), **head, **memory}

    def _pushed(self, frames: Tensor, newest: Tensor, first: Tensor) -> Tensor:
        """The stack with one more frame, which fills it where an episode begins."""
        moved = torch.cat((frames[:, newest.shape[1] :], newest), dim=1)
        filled = torch.cat([newest] * self._depth, dim=1)
        return torch.where(first.reshape(-1, *[1] * (moved.dim() - 1)), filled, moved)

    def _best(self, outputs: Outputs, rows: dict[str, Tensor]) -> Tensor:
        if isinstance(outputs, QOutput):
            values = outputs.q_values
            if ACTION_MASK in rows:
                values = values.masked_fill(~rows[ACTION_MASK], MASKED_LOGIT)
            return values.argmax(-1)
        if isinstance(outputs, PolicyValueOutput):
            assert self.network.distribution is not None
            return self.network.distribution.mode(outputs.logits)
        return outputs.action

    def _for_environment(self, action: Tensor) -> Tensor:
        network, kind = self.network, self.network.distribution
        if self._action.kind != "box":
            return action if self._offset is None else action + self._offset.to(action.device)
        if isinstance(kind, TanhGaussian):
            action = torch.tanh(action)
        if isinstance(kind, TanhGaussian) or isinstance(network, BoundedActionNetwork):
            action = self.low + 0.5 * (action + 1.0) * (self.high - self.low)
        else:
            assert isinstance(kind, Gaussian)
        return torch.minimum(torch.maximum(action, self.low), self.high)


def _dtype(name: str) -> torch.dtype:
    found = {"float32": torch.float32, "uint8": torch.uint8, "bool": torch.bool}
    return found.get(name, torch.int64)
