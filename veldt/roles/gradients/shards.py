# SPDX-License-Identifier: Apache-2.0
"""A flat vector cut into slices, one per node of a parameter server, and read as one again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, NetworkFactory
from veldt.ports import ExperienceSink, ParameterSource
from veldt.role import Part
from veldt.types import Field, Layout


@dataclass(frozen=True)
class Shard:
    """A slice of the flat vector: weights, and in the last one also the running statistics."""

    part: slice
    num_trained: int

    @property
    def trained(self) -> slice:
        """The part of it that a gradient has entries for."""
        return slice(self.part.start, self.part.start + self.num_trained)

    @property
    def layout(self) -> Layout:
        """What a learner sends: its slice of the gradient and where it comes from.

        Statistics (of an observation normaliser) are an estimate, not a step: the newest replaces
        the last."""
        num_statistics = self.part.stop - self.part.start - self.num_trained
        return Layout.of(
            gradient=Field((self.num_trained,), "float32"),
            statistics=Field((num_statistics,), "float32"),
            version=Field((1,), "int64"),
            loss=Field((1,), "float32"),
            learning_rate_scale=Field((1,), "float32"),
        )


def shards(network: NetworkFactory, num_shards: int) -> list[Shard]:
    """Consecutive slices of a network's vector, the trained part in equal shares. What follows it
    (running statistics) belongs to the last one."""
    flat = FlatParameters(network.blank())
    if num_shards > flat.num_trained:
        raise ConfigurationError(f"num_shards is {num_shards}; use 1 to {flat.num_trained:,}")
    bounds = [flat.num_trained * shard // num_shards for shard in range(num_shards)] + [flat.size]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    return [Shard(part, min(part.stop, flat.num_trained) - part.start) for part in parts]


@dataclass(eq=False)
class ShardedSource(Part):
    """Pulls each slice on its own; they may be a few updates apart, as servers work without a
    barrier. Its version is the oldest slice's: so many updates the whole vector has seen for sure.
    It remembers what it pulled, so it must always pull into the same vector."""

    shards: list[Shard]
    boards: list[ParameterSource]

    def __post_init__(self) -> None:
        self.versions = [-1] * len(self.shards)
        """The version of each slice at the last pull."""

    def pull(self, into: np.ndarray, newer_than: int) -> int | None:
        changed = False
        for index, (board, shard) in enumerate(zip(self.boards, self.shards, strict=True)):
            newest = board.pull(into[shard.part], self.versions[index])
            if newest is not None:
                self.versions[index], changed = newest, True
        return min(self.versions) if changed else None


@dataclass(eq=False)
class Server(Part):
    """The way to all shards of a parameter server: a queue of gradients and a board for each."""

    shards: list[Shard]
    queues: list[ExperienceSink]
    boards: list[ParameterSource]

    def weights(self) -> ShardedSource:
        return ShardedSource(self.shards, self.boards)
