# SPDX-License-Identifier: Apache-2.0
"""Describes Gymnasium spaces as JSON values, without importing Gymnasium."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def described(space: Any) -> dict[str, Any]:
    """Describe a Gymnasium space as plain JSON values.

    Args:
        space: A space of Gymnasium, or such a description, which is returned unchanged.

    Returns:
        Its type and parameters; equal bounds are written once.
    """
    if isinstance(space, Mapping) and "type" in space:
        return dict(space)
    kind = next((each.__name__ for each in type(space).__mro__ if each.__name__ in _WRITERS), None)
    if kind is None:
        raise ValueError(f"the space {space} cannot be described as JSON")
    return {"type": kind, **_WRITERS[kind](space)}


def _discrete(space: Any) -> dict[str, Any]:
    return {"n": int(space.n), "start": int(space.start)}


def _multi_discrete(space: Any) -> dict[str, Any]:
    starts = space.nvec * 0 + space.start
    return {"nvec": space.nvec.tolist(), "start": starts.tolist()}


def _box(space: Any) -> dict[str, Any]:
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {"shape": list(space.shape), "dtype": str(space.dtype), **bounds}


def _bound(bound: Any) -> Any:
    """A bound for JSON, which has no infinity."""
    values = [_word(float(value)) for value in bound.reshape(-1)]
    return values[0] if values and len(set(values)) == 1 else values


def _word(value: float) -> float | str:
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


_WRITERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Dict": lambda space: {"spaces": {key: described(each) for key, each in space.spaces.items()}},
    "Tuple": lambda space: {"spaces": [described(each) for each in space.spaces]},
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda space: {"shape": list(space.shape)},
    "Box": _box,
}
