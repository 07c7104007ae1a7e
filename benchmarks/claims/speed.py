# SPDX-License-Identifier: Apache-2.0
"""What claims about speed share: runs on the process backend, all measured for as long, which are
not evaluated; and how speed changes with the width of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Claim, Row, values
from .training import Training, train


@dataclass(frozen=True)
class SpeedClaim(Claim):
    """Runs that are measured for some seconds."""

    seconds: float = 4.0
    """How long each run is measured."""
    seeds: int = 3

    def run(self, architecture: str, seed: int, actors: int, envs: int, **options: Any) -> Training:
        """A run with so many actors of `envs` environments."""
        given = {"env": self.env, "max_seconds": self.seconds, "evaluation_episodes": 0, **options}
        sizes = {"num_actors": actors, "envs_per_actor": envs}
        return train(architecture, backend="process", seed=seed, **sizes, **given)


@dataclass(frozen=True)
class WidthClaim(SpeedClaim):
    """Runs with networks of several widths."""

    widths: tuple[int, ...] = (64, 2048)
    """Widths of both hidden layers, comma separated, from narrow to wide."""
    actors: int = 4
    """Actors of each system."""
    envs_per_actor: int = 8
    """Environments of each actor: few, as with environments that cost something."""
    device: str = "cpu"
    """Where learning, and central inference, happen."""

    def run_at_width(self, architecture: str, case: Row, **options: Any) -> Training:
        """A run with two hidden layers of the case's width."""
        given = {
            "device": self.device,
            "network_options": {"hidden_sizes": (case["width"], case["width"])},
            **options,
        }
        return self.run(architecture, case["seed"], self.actors, self.envs_per_actor, **given)

    def rates(self, rows: list[Row], **kind: Any) -> np.ndarray:
        """Trained steps per second, [widths, seeds]."""
        key = "trained_steps_per_second"
        return np.array([values(rows, key, width=width, **kind) for width in self.widths])
