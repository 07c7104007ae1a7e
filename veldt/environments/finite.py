# SPDX-License-Identifier: Apache-2.0
"""Detects NaN and infinity at the cost of one dot product.

A sum of squares is finite only if every entry is. Entries are checked one by one only where it is
not, because large finite entries overflow it too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def is_finite(observation: Any) -> bool:
    """Whether a (nested) observation of one environment has neither NaN nor infinity."""
    if isinstance(observation, np.ndarray):
        if observation.dtype.kind != "f":
            return True
        flat = observation if observation.ndim == 1 else observation.ravel()
        return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
    if isinstance(observation, dict):
        return all(map(is_finite, observation.values()))
    if isinstance(observation, tuple):
        return all(map(is_finite, observation))
    return not isinstance(observation, float) or math.isfinite(observation)


def bad_rows(array: np.ndarray) -> np.ndarray | None:
    """bool [E]: environments with entries that are not finite; None where there are none."""
    if array.dtype.kind != "f":
        return None
    flat = array.ravel()
    if math.isfinite(flat.dot(flat)):
        return None
    bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return bad if bad.any() else None


def cleared(observation: Any) -> Any:
    """A copy with zeros where entries are not finite."""
    if isinstance(observation, dict):
        return {name: cleared(value) for name, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(cleared, observation))
    array = np.array(observation)
    if array.dtype.kind == "f":
        array[~np.isfinite(array)] = 0.0
    return array
