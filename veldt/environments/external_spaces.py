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


@dataclass(frozen=True)
class ExternalAddress:
    """Where a run listens, and an optional file that describes the spaces."""

    listen: str
    spaces_file: str | None = None


@dataclass(frozen=True)
class ExternalEndpoint:
    """Where simulators connect to a stream of a topology, and what their environments are like.
    They are no nodes of the run."""

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
    has_mask = isinstance(observation, gymnasium.spaces.Dict) and ACTION_MASK in observation.spaces
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


def described(space: Any) -> dict[str, Any]:
    """The space as plain JSON values; `veldt_client.described` writes the same. A description is
    returned unchanged."""
    match space:
        case dict():
            return dict(space)
        case spaces.Dict():
            entries = {key: described(each) for key, each in space.spaces.items()}
            return {"type": "Dict", "spaces": entries}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [described(each) for each in space.spaces]}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            starts = space.nvec * 0 + space.start
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": starts.tolist(),
            }
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
    """The reverse of `described`; ConfigurationError where it is no such description."""
    try:
        return _READERS[text["type"]](text)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"{text!r:.200} does not describe a space: {error}") from error


def _box(text: Any) -> gymnasium.Space:
    shape, dtype = tuple(text["shape"]), np.dtype(text["dtype"])
    kind: Any = dtype.type
    low, high = (_array(text[end], shape, dtype) for end in ("low", "high"))
    return spaces.Box(low, high, shape, kind)


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = np.asarray(bound, np.float64)
    return (np.full(shape, values) if values.ndim == 0 else values.reshape(shape)).astype(dtype)


_READERS: dict[str, Any] = {
    "Dict": lambda text: spaces.Dict(
        {key: space_from(entry) for key, entry in text["spaces"].items()}
    ),
    "Tuple": lambda text: spaces.Tuple([space_from(entry) for entry in text["spaces"]]),
    "Discrete": lambda text: spaces.Discrete(text["n"], start=text["start"]),
    "MultiDiscrete": lambda text: spaces.MultiDiscrete(
        np.asarray(text["nvec"], np.int64), start=np.asarray(text["start"], np.int64)
    ),
    "MultiBinary": lambda text: spaces.MultiBinary(
        text["shape"][0] if len(text["shape"]) == 1 else text["shape"]
    ),
    "Box": _box,
}
