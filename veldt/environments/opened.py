# SPDX-License-Identifier: Apache-2.0
"""A Gymnasium vector environment that has been opened, and how it is stepped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from veldt.environments.resilience import AbortedEpisodes

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class Stepper(Protocol):
    """A step in two halves, so that something else can be done in between."""

    def send(self, actions: np.ndarray) -> None: ...

    def recv(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]: ...


@dataclass(frozen=True)
class OpenedVector:
    """A Gymnasium vector environment and what must be known about it to read it rightly."""

    env: VectorEnv
    autoreset: AutoresetMode
    frames_per_step: int = 1
    rows_per_env_step: int = 1
    seeded: bool = False
    """True when the seed was given at construction and must not be given to reset()."""
    life_loss: str = "none"
    """How lost lives end an episode: "none"; "continues": terminated is set but no reset follows
    (ale-py); "resets": a reset row follows but the game goes on (EnvPool)."""
    aborted: AbortedEpisodes | None = None
    """Where environments that can be rebuilt say that they had to be."""
    stepper: Stepper | None = None
    """What steps `env` in two halves; None: it only has step(), which does both."""
