# SPDX-License-Identifier: Apache-2.0
"""Veldt: every architecture of distributed reinforcement learning, from DQN to AReaL."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veldt.api import evaluate, export, load, resume, sweep, train
    from veldt.callbacks import Callback, CallbackFailure, Episode
    from veldt.commands.evaluate import EvaluationResult
    from veldt.errors import ConfigurationError, UploadFailure
    from veldt.options.keywords import TrainOptions
    from veldt.policy import PolicyState, TrainedPolicy
    from veldt.policy.export import Exported
    from veldt.sweeps.command import SweepResult
    from veldt.telemetry.result import RunResult

__all__ = [
    "Callback",
    "CallbackFailure",
    "ConfigurationError",
    "Episode",
    "EvaluationResult",
    "Exported",
    "PolicyState",
    "RunResult",
    "SweepResult",
    "TrainOptions",
    "TrainedPolicy",
    "UploadFailure",
    "evaluate",
    "export",
    "load",
    "resume",
    "sweep",
    "train",
]
__version__ = "0.2.0"

_MODULES = {
    "veldt.api": ("evaluate", "export", "load", "resume", "sweep", "train"),
    "veldt.callbacks": ("Callback", "CallbackFailure", "Episode"),
    "veldt.commands.evaluate": ("EvaluationResult",),
    "veldt.errors": ("ConfigurationError", "UploadFailure"),
    "veldt.options.keywords": ("TrainOptions",),
    "veldt.policy": ("PolicyState", "TrainedPolicy"),
    "veldt.policy.export": ("Exported",),
    "veldt.sweeps.command": ("SweepResult",),
    "veldt.telemetry.result": ("RunResult",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    """Import the module of a public name on first use.

    The program imports this package before it handles signals, so the import must be quick."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'veldt' has no attribute '{name}'")
