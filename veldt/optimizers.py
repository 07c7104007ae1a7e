# SPDX-License-Identifier: Apache-2.0
"""Optimizers on one flat vector, in place, with all their memory in one flat tensor.

So a parameter-server shard steps a slice, Hogwild workers share vector and moments without
locks, and a checkpoint is two tensors. RMSProp has epsilon inside the root, as A3C and IMPALA
used it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from veldt.options.checked import Bounds, Decay, NotNegative, Options
from veldt.options.groups import OPTIMIZER_OPTIONS

_ADAM_BETA2 = 0.999


@dataclass(frozen=True)
class Schedule:
    """How much of a run has passed, 0 to 1: the share of its env steps, or else of its time."""

    env_steps: int | None = None
    """The env steps that one learner trains on in the whole run."""
    seconds: float = math.inf
    began: float = 0.0
    """Time of day, which all machines of a run have in common."""

    def passed(self, env_steps: float) -> float:
        """The share that has passed once a learner has trained on `env_steps`."""
        if self.env_steps is not None:
            return min(1.0, env_steps / self.env_steps)
        return min(1.0, max(0.0, (time.time() - self.began) / self.seconds))

    def divided(self, number: float) -> Schedule:
        """The schedule of each of several learners, which share the env steps."""
        if self.env_steps is None:
            return self
        return Schedule(max(1, round(self.env_steps / number)))

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.env_steps is None else f"{self.env_steps:,} env steps"


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """How gradients become steps."""

    optimizer: Literal["adam", "radam", "rmsprop", "sgd", "adagrad"] = "adam"
    """adam, radam (which begins with momentum alone), rmsprop (epsilon inside the root), sgd or
    adagrad."""
    learning_rate: Annotated[float, Bounds(0, 100)] = 1e-3
    """Step size."""
    decay_learning_rate: Annotated[bool, OPTIMIZER_OPTIONS] = False
    """Let the learning rate fall linearly to 0 over --total-env-steps, or else --max-seconds."""
    rmsprop_decay: Annotated[Decay, OPTIMIZER_OPTIONS] = 0.99
    """Decay of RMSProp's mean square."""
    rmsprop_centered: Annotated[bool, OPTIMIZER_OPTIONS] = False
    """RMSProp divides by the standard deviation instead of the root mean square."""
    momentum: Annotated[Decay, OPTIMIZER_OPTIONS] = 0.0
    """Momentum of sgd and rmsprop."""
    adam_beta1: Annotated[Decay, OPTIMIZER_OPTIONS] = 0.9
    """Decay of Adam's mean gradient."""
    optimizer_epsilon: Annotated[NotNegative, OPTIMIZER_OPTIONS] = 1e-5
    """Added inside the root by rmsprop and adagrad, outside by adam."""
    max_grad_norm: NotNegative = 0.5
    """Longer gradients are scaled down to this norm; 0: never."""

    def decays_over(self, schedule: Schedule | None) -> Schedule | None:
        """The schedule by which the learning rate falls to 0, if it does."""
        return schedule if self.decay_learning_rate else None


class Optimizer(ABC):
    """Steps `vector` in place.

    `state_vector` holds the moments, [k * n], and then the number of steps. float32 counts exactly
    to 2^24 and stays there, where no bias correction is left."""

    def __init__(self, options: OptimizerOptions, vector: Tensor, state: Tensor) -> None:
        self.options, self.vector, self.state_vector = options, vector, state
        self.moments = state[:-1].view(num_moments(options), vector.numel())
        self.count = state[-1]
        self.last_norm = math.nan
        self._scratch = torch.empty_like(vector)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate_scale: float = 1.0) -> bool:
        """Apply `gradient`, which is clipped in place. False, and nothing but `last_norm` changed,
        when its norm is not finite."""
        self.last_norm = float(torch.linalg.vector_norm(gradient))
        limit = self.options.max_grad_norm
        if not math.isfinite(self.last_norm):
            return False
        if 0.0 < limit < self.last_norm:
            gradient.mul_(limit / self.last_norm)
        self.count.add_(1.0)
        self._apply(gradient, self.options.learning_rate * learning_rate_scale)
        return True

    @torch.no_grad()
    def step_on_device(self, gradient: Tensor, learning_rate_scale: Tensor) -> Tensor:
        """The same step, computed without the host; returns the norm.

        A gradient that is not finite changes nothing."""
        norm, limit = torch.linalg.vector_norm(gradient), self.options.max_grad_norm
        is_finite = torch.isfinite(norm)
        before = (self.vector.clone(), self.state_vector.clone())
        if limit > 0.0:
            gradient.mul_((limit / norm).clamp(max=1.0))
        self.count.add_(1.0)
        self._apply(gradient, learning_rate_scale * self.options.learning_rate)
        for entry, old in zip((self.vector, self.state_vector), before, strict=True):
            torch.where(is_finite, entry, old, out=entry)
        return norm

    def load(self, state: Tensor) -> None:
        """Continue with the moments of a checkpoint."""
        self.state_vector.copy_(state)

    @abstractmethod
    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        """Update the vector; with a learning rate on the device, without reading any number."""

    def _add_ratio(
        self, target: Tensor, numerator: Tensor, root: Tensor, factor: float | Tensor
    ) -> Tensor:
        """target += factor * numerator / root, in place."""
        return target.add_(torch.div(numerator, root, out=self._scratch).mul_(factor))


class SGD(Optimizer):
    """m <- mu m + d; theta -= lr m."""

    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        if self.options.momentum:
            gradient = self.moments[0].mul_(self.options.momentum).add_(gradient)
        self.vector.sub_(torch.mul(gradient, learning_rate, out=self._scratch))


class RMSProp(Optimizer):
    """g <- a g + (1 - a) d^2; theta -= lr d / sqrt(g + eps). Centered: g - mean(d)^2 in place of g.
    With momentum: m <- mu m + lr d / sqrt(g + eps); theta -= m."""

    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        options, square = self.options, self.moments[0]
        square.mul_(options.rmsprop_decay).addcmul_(
            gradient, gradient, value=1.0 - options.rmsprop_decay
        )
        root = self._scratch
        if options.rmsprop_centered:
            mean = self.moments[1].lerp_(gradient, 1.0 - options.rmsprop_decay)
            # Rounding may leave the difference below zero by more than a small epsilon.
            torch.addcmul(square, mean, mean, value=-1.0, out=root).clamp_(min=0.0)
            root.add_(options.optimizer_epsilon).sqrt_()
        else:
            torch.add(square, options.optimizer_epsilon, out=root).sqrt_()
        if options.momentum:
            momentum = self.moments[-1].mul_(options.momentum)
            self.vector.sub_(self._add_ratio(momentum, gradient, root, learning_rate))
        else:
            self._add_ratio(self.vector, gradient, root, -learning_rate)


class AdaGrad(Optimizer):
    """g <- g + d^2; theta -= lr d / sqrt(g + eps)."""

    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        square = self.moments[0].addcmul_(gradient, gradient)
        root = torch.add(square, self.options.optimizer_epsilon, out=self._scratch).sqrt_()
        self._add_ratio(self.vector, gradient, root, -learning_rate)


class Adam(Optimizer):
    """m <- b1 m + (1 - b1) d; v <- b2 v + (1 - b2) d^2; both corrected for their start at zero."""

    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        (mean, square), beta1, beta2 = self.moments, self.options.adam_beta1, _ADAM_BETA2
        # On the host, numbers are three times as fast as tensors of one.
        count = self.count.double() if self.count.is_cuda else float(self.count)
        mean.lerp_(gradient, 1.0 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        root = torch.sqrt(square, out=self._scratch).div_((1.0 - beta2**count) ** 0.5)
        root.add_(self.options.optimizer_epsilon)
        self._add_ratio(self.vector, mean, root, -learning_rate / (1.0 - beta1**count))


class RAdam(Optimizer):
    """Adam whose steps are divided by the root only once its mean square is known well, and then
    scaled by how well (Liu et al., 2020)."""

    def _apply(self, gradient: Tensor, learning_rate: float | Tensor) -> None:
        (mean, square), beta1, beta2 = self.moments, self.options.adam_beta1, _ADAM_BETA2
        count = self.count.double()
        mean.lerp_(gradient, 1.0 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        forgotten, most = beta2**count, 2.0 / (1.0 - beta2) - 1.0
        length = most - 2.0 * count * forgotten / (1.0 - forgotten)
        known = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
        root = torch.sqrt(square, out=self._scratch).div_((1.0 - forgotten).sqrt())
        root.add_(self.options.optimizer_epsilon)
        scale = torch.where(length > 5.0, known.clamp(min=0.0).sqrt() / root, 1.0)
        self.vector.sub_(scale.mul_(mean).mul_(learning_rate / (1.0 - beta1**count)))


_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "rmsprop": RMSProp,
    "adagrad": AdaGrad,
    "adam": Adam,
    "radam": RAdam,
}


def num_moments(options: OptimizerOptions) -> int:
    """Moments per parameter."""
    with_momentum = int(options.momentum > 0.0)
    if options.optimizer == "rmsprop":
        return 1 + int(options.rmsprop_centered) + with_momentum
    return {"sgd": with_momentum, "adagrad": 1, "adam": 2, "radam": 2}[options.optimizer]


def state_size(options: OptimizerOptions, n: int) -> int:
    """Length of `state_vector` for `n` parameters."""
    return num_moments(options) * n + 1


def make_optimizer(
    options: OptimizerOptions, vector: Tensor, state: Tensor | None = None
) -> Optimizer:
    """An optimizer over `vector`. `state` is used in place (shared memory, a checkpoint); None:
    zeros."""
    size = state_size(options, vector.numel())
    if state is None:
        state = torch.zeros(size, dtype=torch.float32, device=vector.device)
    elif state.shape != (size,):
        raise ValueError(f"optimizer state has {tuple(state.shape)} entries, expected ({size},)")
    return _OPTIMIZERS[options.optimizer](options, vector, state)


@torch.no_grad()
def clip_by_global_norm(gradient: Tensor, max_norm: float) -> Tensor:
    """Scale `gradient` in place to at most `max_norm`; returns the norm before.

    It does not wait for the device. A gradient that is not finite stays so."""
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_((max_norm / norm.clamp(min=1e-12)).clamp(max=1.0))
    return norm
