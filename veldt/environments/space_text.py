# SPDX-License-Identifier: Apache-2.0
"""Gymnasium spaces as JSON and back, so that a policy knows what it was trained on without the
environment being there."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt import client
from veldt.errors import ConfigurationError


def described(space: gymnasium.Space) -> dict[str, Any]:
    """The space as plain values, as clients write them too."""
    try:
        return client.described(space)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


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
