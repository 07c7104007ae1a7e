# SPDX-License-Identifier: Apache-2.0
"""The few protocols that roles talk through. No call blocks: None or False means "not now"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from veldt.types import Batch, Parameters, PolicyReply, Slot

if TYPE_CHECKING:
    import torch


class ExperienceSink(Protocol):
    """Where an actor puts what it saw."""

    def reserve(self) -> Slot | None:
        """A slot to fill, or None while the consumer is behind (back-pressure)."""

    def commit(self, slot: Slot) -> None:
        """Hand the filled slot over; it must not be touched afterwards."""


class ExperienceSource(Protocol):
    """Where a learner gets what it learns from."""

    def take_batch(self) -> Batch | None:
        """The next batch, or None while there is not enough."""

    def release(self, batch: Batch) -> None:
        """Give the batch's slots back to their producers."""


class ParameterSource(Protocol):
    """Where the newest weights are read."""

    def pull(self, into: np.ndarray, newer_than: int) -> int | None:
        """Copy the newest vector into `into` and return its version, or None if none is newer."""


class ParameterSink(Protocol):
    """Where new weights are announced; the latest wins."""

    def publish(self, parameters: Parameters) -> None: ...


class GradientSink(Protocol):
    """Who applies gradients: a local optimizer, a parameter server, shared memory, a group."""

    def begin(self, version: int) -> int | None:
        """Called before a batch is taken: bring the learner's weights, now of `version`, up to date
        where others change them. Returns their version, or None while a gradient could not be
        taken (back-pressure)."""

    def apply(
        self,
        gradient: torch.Tensor,
        version: int,
        learning_rate_scale: float = 1.0,
        loss: torch.Tensor | None = None,
        rows: int = 1,
    ) -> int | None:
        """Take a flat gradient computed from weights of `version` and `rows` rows. Returns the
        version that the learner's own weights have now, or None if they were not changed (yet)."""

    def newest_version(self, version: int) -> int:
        """The version of the weights that a gradient would now be applied to, as far as is known
        here; `version` is that of the learner's own."""
        return version

    def roll_back(self) -> None:
        """The learner has put good weights back into its own vector: do so elsewhere, too."""
        return None

    def state(self) -> dict[str, np.ndarray]: ...

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class Policy(Protocol):
    """Who answers "what now?" for groups of environments: a local copy or a remote server."""

    def refresh(self, minimum_version: int = 0) -> bool:
        """Called before each trajectory: take the newest weights. False while there are none of
        at least `minimum_version`; the trajectory must then not begin."""

    def request(self, group: int, slot: Slot, row: int) -> None:
        """Ask for actions on the observations in `row` of `slot`. Row 0 also gets the recurrent
        state from before it, if there is one."""

    def reply(self, group: int) -> PolicyReply | None:
        """The answer to this group's last request, or None while it is under way."""


class Role(Protocol):
    """A plain class that does one unit of work at a time and does not know where it runs."""

    def step(self) -> bool:
        """Do one unit of work; False when there is nothing to do now. Never blocks or sleeps."""

    def state(self) -> dict[str, np.ndarray]:
        """All that a restart needs, as arrays."""

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...
