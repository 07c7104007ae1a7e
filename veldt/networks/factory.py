# SPDX-License-Identifier: Apache-2.0
"""A picklable description of a network, and the trained weights that it may begin with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from veldt.errors import ConfigurationError, text_of
from veldt.networks.encoders import is_ready_made, two_observations
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import Head, make_network
from veldt.networks.network import Network
from veldt.networks.options import NetworkOptions
from veldt.options.fields import format_keys
from veldt.resources import require_bytes
from veldt.types import ACTION_MASK, EnvironmentSpec

Part = Literal["all", "encoder"]
_ENCODER, _NORMALIZER = "encoder", "observation normaliser"
_NEED_NOT_FIT = ("normalize_returns", "return_moments")  # they scale rewards only
_MAY_BE_LARGE = 2048  # units of a layer
_COPIES = 16
"""Copies of the weights in the smallest run: boards, actor, learner, gradient, optimizer, disk."""


@dataclass(frozen=True)
class NetworkFactory:
    """Makes a network; every call of `make` gives the same weights.

    Args:
        config: Encoder, sizes, core and normalizations.
        spec: The environment's observations and actions.
        head: policy_value, q, dpg, sac or td3, or a class.
        seed: Of the weights.
        first: Trained weights that replace the drawn ones.
    """

    config: NetworkOptions
    spec: EnvironmentSpec
    head: Head
    seed: int = 0
    first: FirstWeights | None = field(default=None, repr=False, compare=False)

    def require_memory(self) -> None:
        """Refuse networks that do not fit into memory, before any of it is allocated."""
        widths = (*self.config.hidden_sizes, self.config.recurrent_size)
        if max(widths) <= _MAY_BE_LARGE:
            return
        num_weights = self.size()
        require_bytes(
            4 * _COPIES * num_weights,
            f"a run with a network of {num_weights:,} weights",
            "use smaller hidden_sizes or recurrent_size in --network-options",
        )

    def make(self) -> Network:
        if self.first is None:
            return make_network(self.config, self.spec, self.head, self.seed)
        seed = None if self.first.part == "all" else self.seed
        network = make_network(self.config, self.spec, self.head, seed)
        self.first.fill(network, self.config, self.spec, self.head)
        return network

    def require_outputs(self, head: str) -> None:
        """Refuse a network whose outputs are not shaped as those of `head`, one of HEADS."""
        name = getattr(self.head, "__name__", self.head)
        expected = replace(self, head=head)._output_shapes()
        try:
            found = self._output_shapes()
        except Exception as error:  # one line that names the user's code
            text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
            raise ConfigurationError(f"the network {name} fails with {text}") from error
        if not expected.items() <= found.items():
            raise ConfigurationError(
                f"the network {name}: for 2 observations outputs() must return {expected}, but it"
                f" returned {found}"
            )

    @torch.no_grad()
    def _output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs for two observations, by name."""
        network, inputs = self.blank(), two_observations(self.spec)
        inputs[ACTION_MASK] = torch.ones((2, self.spec.action_mask_size), dtype=torch.bool)
        for name, field_ in network.input_fields().items():
            inputs[name] = torch.zeros((2, *field_.shape), dtype=getattr(torch, field_.dtype))
        inputs = {name: inputs[name] for name in network.input_names}
        outputs, _ = network.step(inputs, network.initial_state(2), torch.ones(2, dtype=torch.bool))
        named: dict[str, Tensor] = getattr(outputs, "_asdict", dict)()  # {} if no NamedTuple
        return {name: tuple(entry.shape) for name, entry in named.items()}

    def in_float32(self) -> NetworkFactory:
        """The same in float32, so that outputs do not depend on batch size and machine."""
        return replace(self, config=replace(self.config, image_precision="float32"))

    def blank(self) -> Network:
        """The same network with arbitrary weights, to be overwritten."""
        return make_network(self.config, self.spec, self.head, seed=None)

    def outline(self) -> Network:
        """The same network without memory for its weights, for its shapes.

        A user's own encoder is made with memory, because it is called once for its output's size.
        """
        if not is_ready_made(self.config.encoder):
            return self.blank()
        with torch.device("meta"):
            return self.blank()

    def _flat(self) -> FlatParameters:
        network = self.outline()
        return FlatParameters(network, next(network.parameters()).device)

    def initial_vector(self) -> np.ndarray:
        """All weights and statistics before the first update."""
        return FlatParameters(self.make()).numpy()

    def size(self) -> int:
        """Length of that vector."""
        return self._flat().size

    def num_trained(self) -> int:
        """How many entries of the vector an optimizer steps; running statistics follow them."""
        return self._flat().num_trained


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Weights and statistics by name."""
    everything = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: entry for name, entry in everything.items() if entry.is_floating_point()}


@dataclass(frozen=True, eq=False)
class FirstWeights:
    """Weights and statistics of a trained network to begin with, and what it was made for."""

    run: str
    """Where they are from, for messages."""
    tensors: dict[str, np.ndarray]
    config: NetworkOptions
    spec: EnvironmentSpec
    head: Head
    part: Part = "all"

    @torch.no_grad()
    def fill(
        self, network: nn.Module, config: NetworkOptions, spec: EnvironmentSpec, head: Head
    ) -> None:
        """Overwrite the tensors that are taken over; refuse a network that they do not fit."""
        here = {name: entry for name, entry in tensors_of(network).items() if self._takes(name)}
        for what, remedy in self._differences(here, config, spec, head):
            raise ConfigurationError(f"{self.run} does not fit here: {what}; {remedy}")
        for name, entry in here.items():
            if name in self.tensors:
                entry.copy_(torch.from_numpy(self.tensors[name]))

    def _takes(self, name: str) -> bool:
        return self.part == "all" or _part_of(name) in (_ENCODER, _NORMALIZER)

    def _differences(
        self, here: dict[str, Tensor], config: NetworkOptions, spec: EnvironmentSpec, head: Head
    ) -> Iterator[tuple[str, str]]:
        """What differs, and the remedy."""
        takes_all, or_encoder = self.part == "all", "or use --from RUN:best:encoder"
        before, now = self.spec.observed(), spec.observed()
        if before != now:
            remedy = "name an environment with the same observations"
            yield f"its observation is {before}, that of {spec.id} is {now}", remedy
        before, now = self.spec.acted(), spec.acted()
        if takes_all and before != now:
            remedy = f"name an environment with the same actions, {or_encoder}"
            yield f"its action is {before}, that of {spec.id} is {now}", remedy
        if takes_all and self.head != head:
            remedy = f"train an architecture with that head, {or_encoder}"
            yield f"its head is {self.head}, here it is {head}", remedy
        other = self._other_options(config)
        same = f"train with its {format_keys(other)}" if other else "build the same network"
        remedy = f"{same}, {or_encoder}"
        for name in dict.fromkeys([*here, *filter(self._takes, self.tensors)]):
            shapes = [_shape(entries.get(name)) for entries in (self.tensors, here)]
            if shapes[0] != shapes[1] and not name.startswith(_NEED_NOT_FIT):
                shown = f"{name} is {shapes[0]} there and {shapes[1]} here"
                yield f"the {_part_of(name)} differs ({shown})", remedy
        # Options that change no shape, but the outputs.
        names = ["activation", "image_activation", *(["distribution"] if takes_all else [])]
        for option in names:
            if option in other:
                here_it_is = f"here it is {getattr(config, option)}"
                yield f"its {option} is {other[option]}, {here_it_is}", remedy

    def _other_options(self, config: NetworkOptions) -> dict[str, object]:
        """Options that differ, as the trained network had them."""
        names = [entry.name for entry in fields(config) if entry.name not in _NEED_NOT_FIT]
        there = {name: getattr(self.config, name) for name in names}
        return {name: value for name, value in there.items() if value != getattr(config, name)}


def _part_of(name: str) -> str:
    """The part of a network that a tensor belongs to, in words."""
    steps = name.split(".")
    if "normalizer" in steps:
        return _NORMALIZER
    if "encoder" in steps:
        return _ENCODER
    return {"core": "memory", "value_moments": "value normaliser"}.get(steps[0], "head")


def _shape(entry: np.ndarray | Tensor | None) -> str:
    return "missing" if entry is None else str(list(entry.shape))
