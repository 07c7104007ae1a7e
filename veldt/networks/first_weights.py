# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: a network that begins with weights of another, and why some do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from veldt.errors import ConfigurationError
from veldt.networks.options import NetworkOptions
from veldt.options import NetworkDetails
from veldt.options.text import format_keys, format_value
from veldt.types import EnvironmentSpec

Part = Literal["all", "encoder"]
_ENCODER, _NORMALIZER = "encoder", "observation normaliser"
_FRESH = "return_moments"
"""Statistics that a run may begin anew: they scale rewards, and no weight was trained on them."""
_KEYS = {entry.name for entry in fields(NetworkDetails)}
_SHOWN = {"encoder": "network"}  # the option that a user gives it by


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Weights and statistics by name."""
    everything = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: entry for name, entry in everything.items() if entry.is_floating_point()}


@dataclass(frozen=True, eq=False)
class FirstWeights:
    """Weights and statistics of a trained network, and what it was made for."""

    run: str
    """Where they are from, for messages."""
    tensors: dict[str, np.ndarray]
    config: NetworkOptions
    spec: EnvironmentSpec
    head: str
    part: Part = "all"
    env_steps: int = 0
    """Env steps they were trained for."""
    sha256: str = ""

    @torch.no_grad()
    def fill(
        self, network: nn.Module, config: NetworkOptions, spec: EnvironmentSpec, head: str
    ) -> None:
        """Overwrite what is taken over; refuses a network that it does not fit."""
        here = {name: entry for name, entry in tensors_of(network).items() if self._takes(name)}
        for what, remedy in self._differences(here, config, spec, head):
            raise ConfigurationError(f"{self.run} does not fit here: {what}; {remedy}")
        for name, entry in here.items():
            if name in self.tensors:
                entry.copy_(torch.from_numpy(self.tensors[name]))

    def _takes(self, name: str) -> bool:
        return self.part == "all" or _part_of(name) in (_ENCODER, _NORMALIZER)

    def _differences(
        self, here: dict[str, Tensor], config: NetworkOptions, spec: EnvironmentSpec, head: str
    ) -> Iterator[tuple[str, str]]:
        """What differs, with its remedy; the plainest first."""
        takes_all, encoder_only = self.part == "all", "or use --from RUN:best:encoder"
        before, now = self.spec.observed(), spec.observed()
        if before != now:
            remedy = "name an environment with the same observations"
            yield f"its observation is {before}, that of {spec.id} is {now}", remedy
        if takes_all and self.spec.acted() != spec.acted():
            remedy = f"name an environment with the same actions, {encoder_only}"
            acted = f"its action is {self.spec.acted()}, that of {spec.id} is {spec.acted()}"
            yield acted, remedy
        if takes_all and self.head != head:
            remedy = f"train an architecture with that head, {encoder_only}"
            yield f"its head is {self.head}, here it is {head}", remedy
        for name in dict.fromkeys([*here, *filter(self._takes, self.tensors)]):
            shapes = [_shape(entries.get(name)) for entries in (self.tensors, here)]
            if shapes[0] != shapes[1] and not name.startswith(_FRESH):
                part = _part_of(name)
                what = f"the {part} differs ({name} is {shapes[0]} there and {shapes[1]} here)"
                yield what, self._same_options(config, part not in (_ENCODER, _NORMALIZER))
        # These make no difference in shape, and all the difference in what comes out.
        names = ["activation", "image_activation", *(["distribution"] if takes_all else [])]
        for option, there, own in self._other_options(config):
            if option in names:
                yield f"its {option} is {there}, here it is {own}", self._same_options(config)

    def _other_options(self, config: NetworkOptions) -> Iterator[tuple[str, object, object]]:
        for entry in fields(NetworkOptions):
            there, own = (getattr(side, entry.name) for side in (self.config, config))
            if there != own and entry.name != "normalize_returns":
                yield _SHOWN.get(entry.name, entry.name), there, own

    def _same_options(self, config: NetworkOptions, or_encoder: bool = False) -> str:
        other = {name: there for name, there, _ in self._other_options(config)}
        keys = {name: other.pop(name) for name in list(other) if name in _KEYS}
        flags = [_flag(name, there) for name, there in other.items()]
        if keys:
            flags.append(f"--network-options {format_keys(keys)}")
        remedy = f"train with {' '.join(flags)}" if flags else "build the same network"
        return f"{remedy}, or use --from RUN:best:encoder" if or_encoder else remedy


def _part_of(name: str) -> str:
    """The part of a network that a tensor belongs to, in words."""
    steps = name.split(".")
    if steps[0] == "normalizer":
        return _NORMALIZER
    if "encoder" in steps:
        return _ENCODER
    return {"core": "memory", "value_moments": "value normaliser"}.get(steps[0], "head")


def _flag(option: str, value: object) -> str:
    name = option.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {format_value(value)}"


def _shape(entry: np.ndarray | Tensor | None) -> str:
    return "missing" if entry is None else str(list(entry.shape))
