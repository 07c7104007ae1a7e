# SPDX-License-Identifier: Apache-2.0
"""Observations of single environments, or batches of them, as the leaves that a network reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.environments.spaces import Interface, LeafReader, Path, joined_mask, leaf_readers
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec


@dataclass(frozen=True)
class Entry:
    """One array of an observation, as environments return it."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    origin: np.ndarray
    """A valid value of that shape."""
    readers: tuple[LeafReader, ...]

    def array(self, observation: Any) -> np.ndarray:
        for key in self.path:
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ConfigurationError(
                    f"the observation has no entry {key!r}, which the policy was trained with"
                ) from error
        return np.asarray(observation)

    def rows(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The leaves [N, ...] by name in an array [N, ...]."""
        return {reader.leaf.name: _typed(reader, array) for reader in self.readers}


class ObservationReader:
    """Reads observations and masks of an environment with these spaces."""

    def __init__(self, interface: Interface) -> None:
        space = interface.observation_space
        readers = leaf_readers(space, interface.mask_in_observation)
        paths = dict.fromkeys(reader.path for reader in readers)
        self.entries = tuple(
            Entry(
                ".".join(map(str, ("observation", *path))),
                path,
                _at(space, path).shape or (),
                str(_at(space, path).dtype),
                _origin(_at(space, path)),
                tuple(reader for reader in readers if reader.path == path),
            )
            for path in paths
        )
        self._mask_in_observation = interface.mask_in_observation

    def read(self, observation: Any) -> tuple[dict[str, np.ndarray], bool]:
        """Leaves [N, ...] by name, and whether a batch was given."""
        rows: dict[str, np.ndarray] = {}
        width: int | None = -1
        for entry in self.entries:
            array = entry.array(observation)
            if array.shape == entry.shape:
                found, array = None, array[None]
            elif array.shape[1:] == entry.shape and array.ndim == len(entry.shape) + 1:
                found = array.shape[0]
            else:
                raise ConfigurationError(
                    f"the {entry.name} has shape {array.shape}, but the policy was trained with"
                    f" {entry.shape}; give one observation, or a batch of them with one more axis"
                )
            if found != width and width != -1:
                raise ConfigurationError(
                    f"the {entry.name} is one of {found or 'a single observation'}, others are of"
                    f" {width or 'a single observation'}; give all entries for the same rows"
                )
            width = found
            rows |= entry.rows(array)
        return rows, width is not None

    def mask(
        self, action: ActionSpec, observation: Any, mask: Any, width: int
    ) -> np.ndarray | None:
        """Allowed actions [N, M]; None: all."""
        if mask is None and self._mask_in_observation:
            mask = observation[ACTION_MASK]
        if mask is None:
            return None
        if action.kind == "box":
            raise ConfigurationError("Box actions have no mask; leave it out")
        if isinstance(mask, tuple | list) and not np.isscalar(mask[0]):
            mask = np.concatenate([np.asarray(part) for part in mask], axis=-1)
        joined = np.asarray(mask).astype(bool)
        if joined.ndim != 2:
            joined = joined_mask(sum(action.sizes), joined)[None]
        if joined.shape != (width, sum(action.sizes)):
            raise ConfigurationError(
                f"the mask has shape {joined.shape}, but there are {width} observations and"
                f" {sum(action.sizes)} actions to allow"
            )
        if not joined.any(1).all():
            raise ConfigurationError("the mask allows no action at all in one of the rows")
        return joined


def _at(space: gymnasium.Space, path: Path) -> gymnasium.Space:
    for key in path:
        assert isinstance(space, spaces.Dict | spaces.Tuple)
        space = space[key]
    return space


def _origin(space: gymnasium.Space) -> np.ndarray:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.broadcast_to(np.asarray(space.start), space.shape or ())
    return np.zeros(space.shape or ())


def _typed(reader: LeafReader, array: np.ndarray) -> np.ndarray:
    leaf, read = reader.leaf, reader.view(array)
    if read.dtype == leaf.dtype and leaf.kind != "discrete":
        return np.ascontiguousarray(read)
    if leaf.kind != "vector" and read.dtype.kind not in "iub":
        raise ConfigurationError(
            f"the {leaf.name} is {read.dtype}, but the policy was trained with whole numbers; give"
            f" it as {leaf.dtype}"
        )
    if leaf.kind == "discrete" and ((read < 0) | (read >= leaf.categories)).any():
        raise ConfigurationError(
            f"the {leaf.name} is outside of the {leaf.categories} values that the policy knows"
        )
    try:
        return np.ascontiguousarray(read, dtype=leaf.dtype)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the {leaf.name} is not made of numbers: {error}") from error
