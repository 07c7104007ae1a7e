# SPDX-License-Identifier: Apache-2.0
"""Environment parameters that a run may change during training, as in a curriculum.

An environment takes part by having a method `set_parameters(**values)`. The newest values are on a
board, versioned like weights; every copy receives them before its next episode begins.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from veldt.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from veldt.ports import ParameterSource

ENVIRONMENT = "environment"
"""The board's name."""
_MOST_BYTES = 4095

Values = Mapping[str, Any]
"""Numbers, strings and lists of them, by name."""


@runtime_checkable
class TakesParameters(Protocol):
    """An environment, or a vector of them, whose parameters can be set."""

    def set_parameters(self, **values: Any) -> None:
        """Set the parameters of the episodes that begin from now on."""


@runtime_checkable
class PassesOn(Protocol):
    """Copies of an environment that receive parameters when their next episode begins."""

    def pass_on(self, values: Values) -> None: ...


@dataclass(frozen=True)
class Accepted:
    """The arguments of an environment's `set_parameters`."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    @staticmethod
    def by(env: object) -> Accepted | None:
        """The arguments that `env`, or the first copy in it, accepts; None without the method."""
        for layer in _layers(env):
            if isinstance(layer, TakesParameters):
                found = inspect.signature(layer.set_parameters).parameters.values()
                named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
                return Accepted(
                    tuple(p.name for p in named),
                    tuple(p.name for p in named if p.default is p.empty),
                    any(p.kind is p.VAR_KEYWORD for p in found),
                )
        return None

    def check(self, values: Values, environment: str) -> None:
        """Refuse unknown names, and values that are missing."""
        method = f"set_parameters of the environment '{environment}'"
        for name in values:
            if name not in self.names and not self.takes_any:
                remedy = did_you_mean(name, self.names)
                raise ConfigurationError(f"{method} does not take '{name}'; {remedy}")
        missing = ", ".join(name for name in self.required if name not in values)
        if missing:
            raise ConfigurationError(f"{method} also needs {missing}; set it, or give it a default")


def _layers(env: object) -> Iterator[object]:
    """An environment and what its wrappers hold; of a vector the first copy."""
    yield env
    if isinstance(env, gymnasium.Wrapper | VectorWrapper):
        yield from _layers(env.env)
    elif isinstance(env, SyncVectorEnv):
        yield from _layers(env.envs[0])


def give(env: object, values: Values) -> None:
    """Set the parameters of an environment, a copy of one, or a vector of them."""
    for layer in _layers(env):
        if isinstance(layer, PassesOn):
            return layer.pass_on(values)
        if isinstance(layer, TakesParameters):
            return layer.set_parameters(**values)


def to_vector(values: Values) -> np.ndarray:
    """The values as JSON, one byte per float32: exact for every number and string."""
    try:
        text = json.dumps(dict(values), default=_from_numpy, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"environment parameters are finite numbers, strings and lists of them ({error})"
        ) from error
    if len(text) > _MOST_BYTES:
        raise ConfigurationError(
            f"the environment's parameters take {len(text):,} bytes as JSON; {_MOST_BYTES:,} fit"
        )
    vector = np.zeros(1 + _MOST_BYTES, np.float32)
    vector[0] = len(text)
    vector[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
    return vector


def _from_numpy(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is none of these")


def from_vector(vector: np.ndarray) -> dict[str, Any]:
    """The reverse of `to_vector`."""
    text = vector[1 : 1 + int(vector[0])].astype(np.uint8).tobytes()
    found: dict[str, Any] = json.loads(text)
    return found


class ParameterReader:
    """Reads the newest parameters from the board for an actor."""

    def __init__(self, board: ParameterSource) -> None:
        self._board, self._vector = board, to_vector({})
        self.version = -1
        self.values: Values = {}
        self.refresh()

    def refresh(self) -> bool:
        """Pull the newest values; False if there are none."""
        version = self._board.pull(self._vector, newer_than=self.version)
        if version is None:
            return False
        self.version, self.values = version, from_vector(self._vector)
        return True
