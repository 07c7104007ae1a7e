# SPDX-License-Identifier: Apache-2.0
"""Errors in the input of a user, and their messages."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class ConfigurationError(ValueError):
    """Invalid input. The message names the remedy; the command line exits with code 2."""


class UploadFailure(RuntimeError):  # noqa: N818 - a public name
    """A run has ended, but its store lacks some of its files."""


def text_of(error: BaseException) -> str:
    """The text of an error, also of one that has none because its `__str__` raises."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text cannot be read: {type(another).__name__})"


def extra_module(module: str, need: str, extra: str) -> ModuleType:
    """Import a library of an extra of Veldt; `need` says what for, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f'{need}; run: pip install "veldt[{extra}]"') from error


def nearest(given: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that are most similar to `given`; empty if none is."""
    return difflib.get_close_matches(given, list(known), n=most)


_ALSO_CALLED = {
    "lr": "learning_rate",
    "n_envs": "envs_per_actor",
    "num_envs": "envs_per_actor",
    "num_workers": "num_actors",
    "timesteps": "total_env_steps",
    "total_timesteps": "total_env_steps",
    "num_steps": "total_env_steps",
    "lstm": "recurrent",
    "gpu": "device",
    "logdir": "run_dir",
    "ent_coef": "entropy_coefficient",
    "from": "from_run",
    "load": "from_run",
}
"""Options by their names in other libraries."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The remedy for an unknown name: the nearest known one, or `otherwise`."""
    known = list(known)
    synonym = _ALSO_CALLED.get(given.lstrip("-").replace("-", "_"), "")
    same = [name for name in known if name in (synonym, "--" + synonym.replace("_", "-"))]
    if near := same or nearest(given, known):
        return f"did you mean {near[0]}?"
    return otherwise or f"there are {', '.join(known)}"
