# SPDX-License-Identifier: Apache-2.0
"""Interfaces between roles and channels. No call blocks: None or False means "not now".

The ends of channels are protocols, which backends implement. Policies and gradient sinks are parts
of a role: their ends are bound with it, and it opens them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from veldt.role import Arrays, Part
from veldt.types import Batch, Parameters, PolicyReply, Slot

if TYPE_CHECKING:
    import torch

    from veldt.context import NodeContext
    from veldt.networks import FlatParameters, Network


class ExperienceSink(Protocol):
    """Takes the trajectories of an actor."""

    def reserve(self) -> Slot | None:
        """A slot to fill, or None while the consumer is behind (back-pressure)."""

    def commit(self, slot: Slot) -> None:
        """Hand the filled slot over; it must not be touched afterwards."""


class ExperienceSource(Protocol):
    """Gives a learner its batches."""

    def take_batch(self) -> Batch | None:
        """The next batch, or None while there is not enough."""

    def release(self, batch: Batch) -> None:
        """Give the batch's slots back to their producers."""


def receive_all(source: ExperienceSource, receive: Callable[[Batch], None]) -> bool:
    """Pass every waiting batch to `receive`; whether there was one."""
    received = False
    while (batch := source.take_batch()) is not None:
        receive(batch)
        source.release(batch)
        received = True
    return received


class ExperiencePart(Part):
    """A source with state of its own, which its role opens."""

    def open(self, context: NodeContext) -> None: ...

    def take_batch(self) -> Batch | None:
        raise NotImplementedError

    def release(self, batch: Batch) -> None:
        raise NotImplementedError

    def prioritize(self, batch: Batch, priorities: np.ndarray) -> None:
        """Take new priorities of a batch's items; ignored by sources without priorities."""


class ParameterSource(Protocol):
    """Reads the newest weights."""

    def pull(self, into: np.ndarray, newer_than: int, at_most: int | None = None) -> int | None:
        """Copy the newest vector, or the newest up to version `at_most`, into `into` and return its
        version, or None if it is not newer."""

    def version(self) -> int:
        """The newest version."""


class ParameterSink(Protocol):
    """Publishes new weights; only the latest are kept."""

    def publish(self, parameters: Parameters) -> None: ...


class RequestClient(Protocol):
    """Sends requests to an inference server that shares the memory of the slots."""

    def send(self, slot: Slot, row: int) -> None: ...

    def answered(self) -> tuple[int, int] | None:
        """Slot and row of the next answer."""


class RequestServer(Protocol):
    """Takes requests about rows of slots; answers are written into the rows themselves."""

    def take(self) -> tuple[Slot, int] | None: ...

    def answer(self, slot: Slot, row: int, client: int) -> None: ...


@dataclass(frozen=True)
class ReceivedRow:
    """One row of one group of environments, received over a stream."""

    client: int
    group: int
    incarnation: int
    connection: int
    """Grows with each stream; trajectories of an older stream are not continued."""
    arrays: Arrays
    answer: Callable[[bytes], None]
    """Sends the reply; ignored if the stream has ended."""
    leaves: bool = False
    """The last row of an external simulator, which needs no answer."""
    left: bool = False
    """An external simulator has disconnected; there are no arrays."""


class StreamClient(Protocol):
    """Sends rows to a server that may be on another machine."""

    def connect(self, incarnation: int) -> None: ...

    def send(self, group: int, data: bytes) -> None: ...

    def receive(self) -> tuple[int, Arrays] | None: ...


class StreamServer(Protocol):
    """Receives the rows of all clients."""

    @property
    def refused(self) -> dict[str, int]:
        """Number of refused messages, by reason."""

    def take(self) -> ReceivedRow | None: ...

    def close(self) -> None: ...


class Policy(Part):
    """Chooses actions for groups of environments, with local weights or by a remote server."""

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        """Prepare to act for groups of these numbers of environments."""

    def refresh(self, version: int | None = None) -> None:
        """Called before each trajectory: take the newest weights, or exactly this version."""

    def request(self, group: int, slot: Slot, row: int) -> None:
        """Ask for actions on the observations in `row` of `slot`. Row 0 also gets the recurrent
        state from before it, if there is one."""
        raise NotImplementedError

    def reply(self, group: int) -> PolicyReply | None:
        """The answer to this group's last request, or None while there is none yet."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient:
    """A flat gradient and its origin."""

    vector: torch.Tensor
    version: int
    """Of the weights it was computed from."""
    learning_rate_scale: float = 1.0
    loss: torch.Tensor | None = None
    rows: int = 1
    """How many rows it is the mean of."""


class DeviceStep(Protocol):
    """What `GradientSink.device_step` returns."""

    def __call__(self, learning_rate_scale: torch.Tensor) -> None: ...


class GradientSink(Part):
    """Applies gradients: a local optimizer, a parameter server, shared memory, a group."""

    def parameters(self, network: Network, device: str) -> FlatParameters | None:
        """Memory for the learner's network; None: the learner allocates its own."""
        return None

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        """Prepare to take gradients of the weights in `flat`."""

    def begin(self, version: int) -> int | None:
        """Called before a batch is taken: update the learner's weights, now of `version`, where
        other nodes change them. Returns their version, or None while a gradient could not be taken
        (back-pressure)."""
        return version

    def apply(self, gradient: Gradient) -> int | None:
        """Take a gradient. Returns the version that the learner's own weights have now, or None if
        they were not changed (yet)."""
        raise NotImplementedError

    def device_step(self) -> DeviceStep | None:
        """Applies the gradient in place, without reading any number on the host, so that it can be
        recorded together with the loss; None where that is not possible."""
        return None

    def count_device_steps(self) -> None:
        """Record norm and drops of the steps on the device since the last call."""

    def newest_version(self, version: int) -> int:
        """The version of the weights that a gradient would now be applied to, as far as is known;
        `version` is that of the learner's own."""
        return version

    def state(self) -> Arrays:
        return {}

    def load_state(self, state: Arrays) -> None: ...
