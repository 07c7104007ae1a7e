# SPDX-License-Identifier: Apache-2.0
"""What a learner minimises: the base of all losses, and the options they share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from torch import Tensor

from veldt.networks import Network, NetworkOptions
from veldt.options.checked import Count, Fraction, Options
from veldt.options.groups import LOSS_OPTIONS
from veldt.role import Arrays, Part
from veldt.types import EnvironmentSpec

Tensors = dict[str, Tensor]


class Loss(NamedTuple):
    """A scalar to differentiate, and scalars to report."""

    total: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor | None = None
    """How much each item of a replayed batch surprised, [B]."""
    learning_rate_scale: float | Tensor = 1.0
    """The share of a full step that this batch deserves. Not read before the gradient is there."""

    def detached(self) -> Loss:
        """The same numbers without the graph of autograd."""
        scale = self.learning_rate_scale
        return Loss(
            self.total.detach(),
            {name: value.detach() for name, value in self.metrics.items()},
            None if self.priorities is None else self.priorities.detach(),
            scale if isinstance(scale, float) else scale.detach(),
        )


class Objective(Part):
    """Called with a batch of tensors; owns whatever else the loss needs (a target network)."""

    seed = 0
    """For noise and shuffles in the loss; the learner sets its own before `open`."""

    def open(self, network: Network) -> None:
        """Begin to compute losses of `network`."""
        self._network = network

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        """What to take a gradient step on, one after the other, before the next version: the batch
        itself, or minibatches of it several times. Each is asked for when the loss of the one
        before is known."""
        return (batch,)

    def __call__(self, batch: Tensors) -> Loss:
        """The loss on one of `passes`."""
        raise NotImplementedError

    def constants(self) -> Hashable | None:
        """What the loss depends on besides its tensors, if it reads no value back to the host.

        Its kernels can then be recorded once and replayed until these constants change. None: it
        cannot be recorded."""
        return None

    def learning_rate_scale(self) -> float:
        """By what the next step's learning rate is multiplied, beside the loss's own scale."""
        return 1.0

    def after_loss(self, loss: Loss) -> Loss:
        """Called with each loss of `passes`; what the learner is to report of it."""
        return loss

    def after_update(self, version: int) -> None:
        """Called when `version` has been applied."""

    def adjust_entropy(self, coefficient: float) -> None:
        """Set the weight of the entropy bonus, as population-based training does."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy bonus")

    def state(self) -> Arrays:
        """What a restart needs beside the network's weights."""
        return {}

    def load_state(self, state: Arrays) -> None: ...


@dataclass(frozen=True)
class LossOptions(Options):
    """The discount, and which inputs of the network are normalised."""

    gamma: Fraction = 0.99
    """Discount per environment step."""
    normalize_observations: bool = False
    """Scale vectors by statistics shared by all actors."""
    normalize_images: Annotated[bool, LOSS_OPTIONS] = False
    """Scale each pixel by statistics shared by all actors."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        """`shape` with what this loss needs of a network for `spec`."""
        return replace(
            shape,
            normalize_observations=self.normalize_observations,
            normalize_images=self.normalize_images,
        )


@dataclass(frozen=True)
class TransitionOptions(LossOptions):
    """Losses over transitions of a replay, which cuts them by `n_step` and `gamma`."""

    n_step: Count = 1
    """Rewards summed before the target bootstraps."""
