# SPDX-License-Identifier: Apache-2.0
"""Gymnasium spaces as JSON and back, so that a policy knows what it was trained on without the
environment being there."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.errors import ConfigurationError


def described(space: gymnasium.Space) -> dict[str, Any]:
    """The space as plain values; bounds that are equal everywhere are written once."""
    if isinstance(space, spaces.Dict):
        entries = {key: described(entry) for key, entry in space.spaces.items()}
        return {"type": "Dict", "spaces": entries}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [described(entry) for entry in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.broadcast_to(space.start, space.nvec.shape)
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": starts.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    raise ConfigurationError(f"the space {space} cannot be written down")


def _bound(bound: np.ndarray) -> Any:
    """JSON has no infinity, so that these are words."""
    values = [_word(float(value)) for value in bound.reshape(-1)]
    return values[0] if values and len(set(values)) == 1 else values


def _word(value: float) -> float | str:
    return value if np.isfinite(value) else ("inf" if value > 0 else "-inf")


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
