# SPDX-License-Identifier: Apache-2.0
"""External simulators: their address, "external:HOST:PORT?spaces=FILE", and spaces as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.environments.factory import Interface
from veldt.environments.lookup import EXTERNAL_PREFIX
from veldt.environments.spaces import action_spec, leaf_readers
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, EnvironmentSpec

_REMEDY = "write external:HOST:PORT, such as external:127.0.0.1:5000, optionally with ?spaces=FILE"
MOST_PORT = 65_535
MOST_NUMBERS = 1 << 23
"""Limit of numbers and choices in one described space; 1920 x 1080 pixels are below it."""
_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True)
class ExternalAddress:
    """Where a run listens, and an optional file that describes the spaces."""

    listen: str
    spaces_file: str | None = None


@dataclass(frozen=True)
class ExternalEndpoint:
    """Where simulators, which are no nodes of the run, connect to a stream of its topology."""

    address: str
    interface: Interface
    takes_masks: bool


def external_address(name: str) -> ExternalAddress:
    """Parse the name of an external environment."""
    listen, _, setting = name.removeprefix(EXTERNAL_PREFIX).partition("?")
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        raise ConfigurationError(f"'{name}' names no host and port; {_REMEDY}")
    key, _, file = setting.partition("=")
    if setting and (key != "spaces" or not file):
        raise ConfigurationError(f"'{setting}' is not understood in '{name}'; {_REMEDY}")
    return ExternalAddress(listen, file or None)


def external_interface(observation: gymnasium.Space, action: gymnasium.Space) -> Interface:
    """The interface of these spaces; a top-level entry "action_mask" is a mask."""
    has_mask = isinstance(observation, spaces.Dict) and ACTION_MASK in observation.spaces
    return Interface(observation, action, has_mask and action_spec(action).kind != "box")


def external_spec(name: str, interface: Interface, takes_masks: bool) -> EnvironmentSpec:
    """The spec of declared spaces. A client resets within the step."""
    action = action_spec(interface.action_space)
    if takes_masks and action.kind == "box":
        raise ConfigurationError("Box actions have no mask; leave action_masks out")
    readers = leaf_readers(interface.observation_space, interface.mask_in_observation)
    return EnvironmentSpec(
        name,
        tuple(reader.leaf for reader in readers),
        action,
        sum(action.sizes) if takes_masks or interface.mask_in_observation else 0,
        same_step_reset=True,
    )


def described(space: gymnasium.Space) -> dict[str, Any]:
    """The space as JSON values; `veldt_client.described` writes the same."""
    match space:
        case spaces.Dict():
            entries = {key: described(each) for key, each in space.spaces.items()}
            return {"type": "Dict", "spaces": entries}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [described(each) for each in space.spaces]}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            starts = (space.nvec * 0 + space.start).tolist()
            return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": starts}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            shape, dtype = list(space.shape), str(space.dtype)
            return {"type": "Box", "shape": shape, "dtype": dtype, **bounds}
    raise ConfigurationError(f"the space {space} cannot be described as JSON")


def _bound(bound: np.ndarray) -> Any:
    """A bound for JSON, which has no infinity; equal values are written once."""
    values = [v if math.isfinite(v) else str(v) for v in bound.astype(float).reshape(-1).tolist()]
    return values[0] if values and len(set(values)) == 1 else values


def space_from(text: Any) -> gymnasium.Space:
    """The reverse of `described`; its size is checked before anything is allocated."""
    try:
        numbers = _numbers(text)
        if numbers > MOST_NUMBERS:
            raise ValueError(f"it has {numbers:,} numbers and choices, more than {MOST_NUMBERS:,}")
        return _space(text)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ConfigurationError(f"{text!r:.200} does not describe a space: {error}") from error


def _numbers(text: Any) -> int:
    """Numbers in a value of a described space, and choices where one of several is taken."""
    match text:
        case {"type": "Dict", "spaces": dict(entries)}:
            return sum(map(_numbers, entries.values()))
        case {"type": "Tuple", "spaces": list(entries)}:
            return sum(map(_numbers, entries))
        case {"type": "Discrete", "n": int(n), "start": int()}:
            return n
        case {"type": "MultiDiscrete", "nvec": list(nvec), "start": _}:
            return sum(map(abs, np.array(nvec, np.int64).reshape(-1).tolist()))
        case {"type": "MultiBinary", "shape": list(shape)}:
            return math.prod(map(abs, shape))
        case {"type": "Box", "shape": list(shape), "dtype": dtype} if dtype in _DTYPES:
            return math.prod(map(abs, shape))
    raise ValueError(f"no such space: {text!r:.80}")


def _space(text: Any) -> gymnasium.Space:
    match text["type"]:
        case "Dict":
            return spaces.Dict({key: _space(entry) for key, entry in text["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space(entry) for entry in text["spaces"]])
        case "Discrete":
            return spaces.Discrete(text["n"], start=text["start"])
        case "MultiDiscrete":
            sizes, start = (np.array(text[key], np.int64) for key in ("nvec", "start"))
            return spaces.MultiDiscrete(sizes, start=start)
        case "MultiBinary":
            shape = text["shape"]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    shape, dtype = tuple(text["shape"]), np.dtype(text["dtype"])
    low, high = (_array(text[end], shape, dtype) for end in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = np.array(bound, np.float64).astype(dtype)
    return np.broadcast_to(values, shape) if values.ndim == 0 else values.reshape(shape)
