# SPDX-License-Identifier: Apache-2.0
"""The kinds of channels between nodes, as values: what passes and for how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from veldt.types import Layout

if TYPE_CHECKING:
    from veldt.environments import Interface


@dataclass(frozen=True)
class QueueSpec:
    """A bounded FIFO of `num_slots` preallocated slots: many producers, one consumer."""

    name: str
    layout: Layout
    num_slots: int


@dataclass(frozen=True)
class BoardSpec:
    """The newest weights of one network: one writer, many readers, the latest wins."""

    name: str
    size: int
    history: int
    """How many versions stay readable; more than two only where actors lag on purpose."""


@dataclass(frozen=True)
class SharedSpec:
    """Memory that several nodes read and write without locks (Hogwild)."""

    name: str
    size: int
    dtype: str


def numbered(stem: str, count: int) -> list[str]:
    """Names of channels of which there are several; the first has no number."""
    return [f"{stem}-{number}" if number else stem for number in range(count)]


UPDATES_SUFFIX = ".updates"  # beside shared weights, under their name: counts of updates, int64


@dataclass(frozen=True)
class RequestsSpec:
    """Questions of actors to inference servers about rows of the slots of `queue`.

    A message is the number of a row: the server reads the observation where the actor wrote it and
    writes the action beside it, so both need the same memory."""

    name: str
    queue: QueueSpec
    num_clients: int


@dataclass(frozen=True)
class Door:
    """Where simulators elsewhere connect to a stream, and what their environments are like. They
    are no nodes of the run."""

    address: str
    interface: Interface
    takes_masks: bool


@dataclass(frozen=True)
class StreamSpec:
    """Messages of fixed layouts between clients and one server that may be on other machines: one
    `request` per group of a client at a time, answered by one `reply`."""

    name: str
    request: Layout
    reply: Layout
    num_clients: int
    groups_per_client: int
    door: Door | None = None


Channel = QueueSpec | BoardSpec | SharedSpec | RequestsSpec | StreamSpec
