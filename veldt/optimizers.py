# SPDX-License-Identifier: Apache-2.0
"""Optimizers on one flat vector, in place, with all their memory in one flat tensor.

So a parameter-server shard steps a slice, Hogwild workers share vector and moments without
locks, and a checkpoint is two tensors. RMSProp has epsilon inside the root, as A3C and IMPALA
used it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class OptimizerConfig:
    """Choice and constants of an optimizer. The learning rate falls linearly over
    `decay_horizon_updates` to `final_learning_rate_fraction` of itself; horizon 0 keeps it
    constant."""

    name: str = "rmsprop"
    """sgd, rmsprop, adagrad or adam."""
    learning_rate: float = 6e-4
    final_learning_rate_fraction: float = 0.0
    decay_horizon_updates: int = 0
    decay: float = 0.99
    """rmsprop: weight of the old mean square."""
    epsilon: float = 0.01
    """rmsprop, adagrad: added inside the root; adam: outside."""
    momentum: float = 0.0
    """sgd, rmsprop."""
    centered: bool = False
    """rmsprop: divide by the standard deviation instead of the root mean square."""
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 0.0
    """Scale longer gradients down to this norm; 0: never."""
    clip_elementwise: float = 0.0
    """Clip each entry to +- this, after the norm; 0: never."""

    def __post_init__(self) -> None:
        if self.name not in _OPTIMIZERS:
            raise ValueError(f"unknown optimizer '{self.name}'; use {', '.join(_OPTIMIZERS)}")
        for name in ("learning_rate", "epsilon", "max_grad_norm", "clip_elementwise"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} must not be negative")

    def learning_rate_scale(self, updates: int) -> float:
        """Fraction of the learning rate after `updates`: what `step` takes."""
        if self.decay_horizon_updates <= 0:
            return 1.0
        progress = min(1.0, updates / self.decay_horizon_updates)
        return 1.0 + progress * (self.final_learning_rate_fraction - 1.0)


class Optimizer(ABC):
    """Steps `vector` in place. `state_vector` holds the moments one after the other, [k * n],
    then the number of steps; float32 counts exactly to 2^24 and stays there, where no bias
    correction is left."""

    def __init__(self, config: OptimizerConfig, vector: Tensor, state: Tensor) -> None:
        self.config, self.vector, self.state_vector = config, vector, state
        self.moments = _moments(config, state)
        self.count = state[-1]
        self.last_norm = math.nan
        self._scratch = torch.empty_like(vector)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate_scale: float = 1.0) -> bool:
        """Apply `gradient`, which is clipped in place. False, and nothing but `last_norm` changed,
        when its norm is not finite."""
        self.last_norm, limit = float(torch.linalg.vector_norm(gradient)), self.config.max_grad_norm
        if not math.isfinite(self.last_norm):
            return False
        if 0.0 < limit < self.last_norm:
            gradient.mul_(limit / self.last_norm)
        if self.config.clip_elementwise > 0.0:
            gradient.clamp_(-self.config.clip_elementwise, self.config.clip_elementwise)
        self.count.add_(1.0)
        self._apply(gradient, self.config.learning_rate * learning_rate_scale)
        return True

    @abstractmethod
    def _apply(self, gradient: Tensor, learning_rate: float) -> None: ...


class SGD(Optimizer):
    """m <- mu m + d; theta -= lr m."""

    def _apply(self, gradient: Tensor, learning_rate: float) -> None:
        if self.config.momentum:
            gradient = self.moments[0].mul_(self.config.momentum).add_(gradient)
        self.vector.add_(gradient, alpha=-learning_rate)


class RMSProp(Optimizer):
    """g <- a g + (1 - a) d^2; theta -= lr d / sqrt(g + eps). Centered: g - mean(d)^2 in place of g.
    With momentum: m <- mu m + lr d / sqrt(g + eps); theta -= m."""

    def _apply(self, gradient: Tensor, learning_rate: float) -> None:
        config, square = self.config, self.moments[0]
        square.mul_(config.decay).addcmul_(gradient, gradient, value=1.0 - config.decay)
        root = self._scratch
        if config.centered:
            mean = self.moments[1].lerp_(gradient, 1.0 - config.decay)
            # Rounding may leave the difference below zero by more than a small epsilon.
            torch.addcmul(square, mean, mean, value=-1.0, out=root).clamp_(min=0.0)
            root.add_(config.epsilon).sqrt_()
        else:
            torch.add(square, config.epsilon, out=root).sqrt_()
        if config.momentum:
            momentum = self.moments[-1].mul_(config.momentum)
            self.vector.sub_(momentum.addcdiv_(gradient, root, value=learning_rate))
        else:
            self.vector.addcdiv_(gradient, root, value=-learning_rate)


class AdaGrad(Optimizer):
    """g <- g + d^2; theta -= lr d / sqrt(g + eps)."""

    def _apply(self, gradient: Tensor, learning_rate: float) -> None:
        square = self.moments[0].addcmul_(gradient, gradient)
        root = torch.add(square, self.config.epsilon, out=self._scratch).sqrt_()
        self.vector.addcdiv_(gradient, root, value=-learning_rate)


class Adam(Optimizer):
    """m <- b1 m + (1 - b1) d; v <- b2 v + (1 - b2) d^2; both corrected for their start at zero."""

    def _apply(self, gradient: Tensor, learning_rate: float) -> None:
        (beta1, beta2), (mean, square) = self.config.betas, self.moments
        count = float(self.count)
        mean.lerp_(gradient, 1.0 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        root = torch.sqrt(square, out=self._scratch).div_(math.sqrt(1.0 - beta2**count))
        root.add_(self.config.epsilon)
        self.vector.addcdiv_(mean, root, value=-learning_rate / (1.0 - beta1**count))


_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "rmsprop": RMSProp,
    "adagrad": AdaGrad,
    "adam": Adam,
}


def num_moments(config: OptimizerConfig) -> int:
    """How many numbers per parameter the optimizer remembers."""
    with_momentum = int(config.momentum > 0.0)
    if config.name == "rmsprop":
        return 1 + int(config.centered) + with_momentum
    return {"sgd": with_momentum, "adagrad": 1, "adam": 2}[config.name]


def state_size(config: OptimizerConfig, n: int) -> int:
    """Length of `state_vector` for `n` parameters."""
    return num_moments(config) * n + 1


def _moments(config: OptimizerConfig, state: Tensor) -> Tensor:
    count = num_moments(config)
    return state[:-1].view(count, (state.numel() - 1) // max(1, count))


def make_optimizer(
    config: OptimizerConfig, vector: Tensor, state: Tensor | None = None
) -> Optimizer:
    """An optimizer over `vector`. `state` is used in place (shared memory, a checkpoint); None:
    zeros."""
    size = state_size(config, vector.numel())
    if state is None:
        state = torch.zeros(size, dtype=torch.float32, device=vector.device)
    elif state.shape != (size,):
        raise ValueError(f"optimizer state has {tuple(state.shape)} entries, expected ({size},)")
    return _OPTIMIZERS[config.name](config, vector, state)


@torch.no_grad()
def clip_by_global_norm(gradient: Tensor, max_norm: float) -> Tensor:
    """Scale `gradient` in place to at most `max_norm`, without waiting for the device; the norm
    before. A gradient that is not finite is not made finite: its norm is inf or nan."""
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_((max_norm / norm.clamp(min=1e-12)).clamp(max=1.0))
    return norm
