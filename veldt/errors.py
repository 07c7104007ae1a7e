# SPDX-License-Identifier: Apache-2.0
"""What is wrong with what a user asked for, said before anything starts."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class ConfigurationError(ValueError):
    """Bad input. The message names the remedy; the command line prints it and exits with 2."""


class UploadFailure(RuntimeError):  # noqa: N818 - it reads as what it is
    """A run has ended, and the store it lives in does not have all of it."""


def extra_module(module: str, need: str, extra: str) -> ModuleType:
    """A library that an extra of Veldt brings. Where it is missing, `need` says what for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f'{need}; run: pip install "veldt[{extra}]"') from error


def nearest(given: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look most like this one; none if none is near."""
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
    """The remedy for a name that is not known: the one nearest to it, or `otherwise`."""
    known = list(known)
    near = _by_another_name(given, known) or nearest(given, known)
    if near:
        return f"did you mean {near[0]}?"
    return otherwise or f"there are {', '.join(known)}"


def _by_another_name(given: str, known: list[str]) -> list[str]:
    found = _ALSO_CALLED.get(given.lstrip("-").replace("-", "_"))
    flag = None if found is None else "--" + found.replace("_", "-")
    return [name for name in known if name in (found, flag)][:1]
