# SPDX-License-Identifier: Apache-2.0
"""Action masks from an observation entry or from the info, as one boolean array."""

from __future__ import annotations

from typing import Any

import numpy as np

from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec


class MaskReader:
    """Reads [E, M] masks, M = sum of the action sizes. `in_info` says where they are."""

    def __init__(self, action: ActionSpec, num_envs: int, in_info: bool) -> None:
        self._in_info = in_info
        self._mask = np.ones((num_envs, sum(action.sizes)), dtype=bool)
        ends = np.cumsum(action.sizes)
        self._segments = [
            slice(int(end) - size, int(end)) for end, size in zip(ends, action.sizes, strict=True)
        ]

    def read(
        self, observation: Any, info: dict[str, Any], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """The masks of the current observations; the array is reused. An environment whose info has
        none allows everything. `rows`: the info speaks of these environments only."""
        if not self._in_info:
            masks = observation[ACTION_MASK]
            self._mask[:] = np.concatenate(masks, axis=1) if isinstance(masks, tuple) else masks
        else:
            self._mask[slice(None) if rows is None else rows] = True
            if ACTION_MASK in info:
                self._write(info[ACTION_MASK], info.get("_" + ACTION_MASK))
        # A finished game allows nothing; the action is ignored there, but the policy still needs a
        # distribution to draw it from.
        for segment in self._segments:
            part = self._mask[:, segment]
            part[~part.any(axis=1)] = True
        return self._mask

    def _write(self, masks: np.ndarray, given: np.ndarray | None) -> None:
        if given is None:
            given = np.ones(len(self._mask), dtype=bool)
        if masks.dtype == object:
            for row in np.flatnonzero(given):
                self._mask[row] = _joined(masks[row])
        else:
            self._mask[given] = masks[given]


def joined_mask(action: ActionSpec, mask: Any) -> np.ndarray:
    """One environment's mask in one piece, checked against the action space."""
    joined, expected = _joined(mask), sum(action.sizes)
    if len(joined) != expected:
        raise ConfigurationError(
            f"the action mask has {len(joined)} entries but the action space has {expected}"
            " choices; for MultiDiscrete join the masks of all dimensions"
        )
    return joined


def _joined(mask: Any) -> np.ndarray:
    if isinstance(mask, tuple | list):
        return np.concatenate([np.asarray(part).reshape(-1) for part in mask])
    return np.asarray(mask).reshape(-1)
