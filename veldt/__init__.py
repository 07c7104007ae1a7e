# SPDX-License-Identifier: Apache-2.0
"""Veldt: every architecture of distributed reinforcement learning, from DQN to AReaL."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" marks them as public
    from veldt.api import evaluate as evaluate
    from veldt.api import export as export
    from veldt.api import load as load
    from veldt.api import resume as resume
    from veldt.api import sweep as sweep
    from veldt.api import train as train
    from veldt.callbacks import Callback as Callback
    from veldt.callbacks import CallbackFailure as CallbackFailure
    from veldt.callbacks import Episode as Episode
    from veldt.commands.evaluate import EvaluationResult as EvaluationResult
    from veldt.errors import ConfigurationError as ConfigurationError
    from veldt.errors import UploadFailure as UploadFailure
    from veldt.options.keywords import TrainOptions as TrainOptions
    from veldt.policy import PolicyState as PolicyState
    from veldt.policy import TrainedPolicy as TrainedPolicy
    from veldt.policy.export import Exported as Exported
    from veldt.sweeps.command import SweepResult as SweepResult
    from veldt.telemetry.result import RunResult as RunResult

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
__all__ = sorted(_MODULE_OF)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    """Import the module of a public name on first use.

    The program imports this package before it handles signals, so the import must be quick."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'veldt' has no attribute '{name}'")
