# SPDX-License-Identifier: Apache-2.0
"""Veldt: every architecture of distributed reinforcement learning, from DQN to Sample Factory."""

from typing import TYPE_CHECKING

from veldt.api import evaluate, export, load, resume, train
from veldt.callbacks import Callback, CallbackFailure, Episode
from veldt.errors import ConfigurationError
from veldt.telemetry.result import RunResult

if TYPE_CHECKING:
    from veldt.policy import PolicyState, TrainedPolicy

__all__ = [
    "Callback",
    "CallbackFailure",
    "ConfigurationError",
    "Episode",
    "PolicyState",
    "RunResult",
    "TrainedPolicy",
    "evaluate",
    "export",
    "load",
    "resume",
    "train",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Types that bring torch, which is not imported before somebody needs it."""
    if name in ("PolicyState", "TrainedPolicy"):
        from veldt import policy

        return getattr(policy, name)
    raise AttributeError(f"module 'veldt' has no attribute '{name}'")
