# SPDX-License-Identifier: Apache-2.0
"""Options: frozen dataclasses that check their values when they are made.

The type of a field is its rule: Literal for choices, Annotated with Bounds for numbers. The same
rules hold on the command line, in Python and in files, before anything starts.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from veldt.errors import ConfigurationError, did_you_mean


@dataclass(frozen=True)
class Bounds:
    """Numbers from `low` to `high`; `above` and `below` exclude the ends."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def hold(self, value: float) -> bool:
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return low and high

    def text(self) -> str:
        first, last = (f"{end:,.15g}" for end in (self.low, self.high))
        low = f"above {first}" if self.above else f"{first} or more"
        if self.high == math.inf:
            return low
        high = f"below {last}" if self.below else f"at most {last}"
        if self.low == -math.inf:
            return high
        return f"{low} and {high}" if self.above or self.below else f"{first} to {last}"


_MOST = 1e9  # of anything, this is more than fits into a machine

Count = Annotated[int, Bounds(1, _MOST)]
Nodes = Annotated[int, Bounds(1, 1024)]
"""Nodes of one kind in a run."""
CountOrNone = Annotated[int, Bounds(0, _MOST)]
Positive = Annotated[float, Bounds(0, 1e12, above=True)]
NotNegative = Annotated[float, Bounds(0, 1e12)]
Fraction = Annotated[float, Bounds(0, 1)]
Decay = Annotated[float, Bounds(0, 1, below=True)]


@dataclass(frozen=True)
class Options:
    """Base class of groups of options."""

    def __post_init__(self) -> None:
        kinds = type_hints_of(type(self))  # type: ignore[arg-type]
        for entry in fields(self):
            kind, value = kinds[entry.name], getattr(self, entry.name)
            trouble = validation_error(value, kind)
            if trouble:
                raise ConfigurationError(f"{entry.name} {trouble}")
            if is_keyed(kind):
                object.__setattr__(self, entry.name, kind.of(value))


@dataclass(frozen=True)
class KeyedOptions(Options):
    """Options under one name: a dict in Python, KEY=VALUE,... on the command line."""

    @classmethod
    def of(cls, value: object) -> Self:
        """The options from a dict; other keys have their defaults."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ConfigurationError(_cannot_be(value))
        known = [entry.name for entry in fields(cls)]
        for key in value:
            if key not in known:
                raise ConfigurationError(f"has no key '{key}'; {did_you_mean(str(key), known)}")
        # JSON and TOML have lists where options are tuples.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})

    def merged(self, value: object) -> Self:
        """These options with the keys of a dict replaced."""
        return self.of({**asdict(self), **value} if isinstance(value, Mapping) else value)


def is_keyed(kind: object) -> bool:
    """Whether a field of this type is one option with keys, not a group of options."""
    return isinstance(kind, type) and issubclass(kind, KeyedOptions)


@cache
def type_hints_of(options: Any) -> dict[str, Any]:
    """Types of the fields by name, with their annotations."""
    return get_type_hints(options, include_extras=True)


def validation_error(value: object, kind: Any) -> str | None:
    """Why `value` is no valid `kind`; None if it is."""
    if is_keyed(kind):
        try:
            kind.of(value)
        except ConfigurationError as error:
            return str(error)
        return None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return validation_error(value, arguments[0]) or _out_of_bounds(value, arguments[1:])
    if origin in (Union, types.UnionType):
        troubles = [validation_error(value, member) for member in arguments]
        if None in troubles:
            return None
        typed = [text for text in troubles if text and "cannot be" not in text]
        if not typed:
            return troubles[0]
        return f"{typed[0]}, or none" if types.NoneType in arguments else typed[0]
    if origin is Literal:
        if value in arguments:
            return None
        return f"is unknown: '{value}'; use {', '.join(map(str, arguments))}"
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _cannot_be(value)
        troubles = [trouble for item in value if (trouble := validation_error(item, arguments[0]))]
        return troubles[0] if troubles else None
    return _plain_error(value, origin or kind)


def _out_of_bounds(value: object, rules: tuple[object, ...]) -> str | None:
    for rule in rules:
        if isinstance(rule, Bounds) and isinstance(value, int | float) and not rule.hold(value):
            return f"is {value}; use {rule.text()}"
    return None


def _plain_error(value: object, kind: Any) -> str | None:
    if kind is Any or kind is object:
        return None
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return None if callable(value) else _cannot_be(value)
    if kind in (int, float) and isinstance(value, bool):
        return _cannot_be(value)
    if kind is float:
        if not isinstance(value, int | float):
            return _cannot_be(value)
        return None if math.isfinite(value) else f"is {value}; use a finite number"
    return None if isinstance(value, kind) else _cannot_be(value)


def _cannot_be(value: object) -> str:
    return f"is {value!r}, which this option cannot be"
