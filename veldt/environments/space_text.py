# SPDX-License-Identifier: Apache-2.0
"""Converts Gymnasium spaces to JSON values and back."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.errors import ConfigurationError


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
