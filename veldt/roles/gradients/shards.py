# SPDX-License-Identifier: Apache-2.0
"""Weights that lie on several boards, one slice after the other, read as one vector."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from veldt.networks import FlatParameters
from veldt.ports import ParameterSource


def cut(size: int, num_trained: int, num_shards: int) -> list[slice]:
    """Consecutive slices of a flat vector, the trained part in equal shares. What follows it
    (running statistics) belongs to the last one."""
    if not 1 <= num_shards <= num_trained:
        raise ValueError(f"num_shards is {num_shards}; use 1 to {num_trained:,}")
    bounds = [num_trained * shard // num_shards for shard in range(num_shards)] + [size]
    return [slice(*pair) for pair in pairwise(bounds)]


class JoinedSource:
    """Pulls each slice on its own; they may be a few updates apart, as servers work without a
    barrier. Its version is the oldest slice's: so many updates the whole vector has seen for sure.
    It remembers what it pulled, so it must always pull into the same vector."""

    def __init__(self, sources: list[ParameterSource], slices: list[slice]) -> None:
        self._parts = list(zip(sources, slices, strict=True))
        self.versions = [-1] * len(sources)
        """The version of each slice at the last pull."""

    def pull(self, into: np.ndarray, newer_than: int) -> int | None:
        changed = False
        for index, (source, part) in enumerate(self._parts):
            newest = source.pull(into[part], self.versions[index])
            if newest is not None:
                self.versions[index], changed = newest, True
        return min(self.versions) if changed else None


def joined(
    source: ParameterSource | list[ParameterSource], flat: FlatParameters
) -> ParameterSource:
    """One board as it is, or the boards of all shards as one source."""
    if not isinstance(source, list):
        return source
    return JoinedSource(source, cut(flat.size, flat.num_trained, len(source)))
