# SPDX-License-Identifier: Apache-2.0
"""How gradients become steps, as a user may choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from veldt.optimizers import OptimizerConfig
from veldt.options.checked import Bounds, Decay, NotNegative, Options


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """How gradients become steps."""

    optimizer: Literal["adam", "rmsprop", "sgd", "adagrad"] = "adam"
    """adam, rmsprop (epsilon inside the root), sgd or adagrad."""
    learning_rate: Annotated[float, Bounds(0, 100)] = 1e-3
    """Step size."""
    decay_learning_rate: bool = False
    """Let the learning rate fall linearly to 0 over --total-env-steps."""
    rms_decay: Decay = 0.99
    """Decay of RMSProp's mean square."""
    rms_centered: bool = False
    """RMSProp divides by the standard deviation instead of the root mean square."""
    momentum: Decay = 0.0
    """Momentum of sgd and rmsprop."""
    adam_beta1: Decay = 0.9
    """Decay of Adam's mean gradient."""
    optimizer_epsilon: NotNegative = 1e-5
    """Added inside the root by rmsprop and adagrad, outside by adam."""
    max_grad_norm: NotNegative = 0.5
    """Longer gradients are scaled down to this norm; 0: never."""

    def decays_over(self, env_steps: int | None) -> int | None:
        """The env steps over which the learning rate falls to 0, if it does."""
        return env_steps if self.decay_learning_rate else None

    def config(self) -> OptimizerConfig:
        return OptimizerConfig(
            self.optimizer,
            self.learning_rate,
            decay=self.rms_decay,
            epsilon=self.optimizer_epsilon,
            momentum=self.momentum,
            betas=(self.adam_beta1, 0.999),
            centered=self.rms_centered,
            max_grad_norm=self.max_grad_norm,
        )
