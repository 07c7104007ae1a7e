# SPDX-License-Identifier: Apache-2.0
"""Groups of options that several architectures share; a Config inherits the groups it needs."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.optimizers import OptimizerConfig


@dataclass(frozen=True)
class OptimizerSettings:
    """How gradients become steps."""

    optimizer: str = "adam"
    """adam, rmsprop (epsilon inside the root), sgd or adagrad."""
    learning_rate: float = 1e-3
    """Step size."""
    decay_learning_rate: bool = False
    """Let the learning rate fall linearly to 0 over --total-env-steps."""
    rms_decay: float = 0.99
    """Decay of RMSProp's mean square."""
    rms_centered: bool = False
    """RMSProp divides by the standard deviation instead of the root mean square."""
    momentum: float = 0.0
    """Momentum of sgd and rmsprop."""
    optimizer_epsilon: float = 1e-5
    """Added inside the root by rmsprop and adagrad, outside by adam."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm; 0: never."""

    def optimizer_config(self) -> OptimizerConfig:
        return OptimizerConfig(
            self.optimizer,
            self.learning_rate,
            decay=self.rms_decay,
            epsilon=self.optimizer_epsilon,
            momentum=self.momentum,
            centered=self.rms_centered,
            max_grad_norm=self.max_grad_norm,
        )
