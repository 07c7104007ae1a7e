# SPDX-License-Identifier: Apache-2.0
"""What is wrong with what a user asked for, said before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """Bad input. The message names the remedy; the command line prints it and exits with 2."""


def nearest(given: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look most like this one; none if none is near."""
    return difflib.get_close_matches(given, list(known), n=most)


def did_you_mean(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The remedy for a name that is not known: the one nearest to it, or `otherwise`."""
    known = list(known)
    near = nearest(given, known)
    if near:
        return f"did you mean {near[0]}?"
    return otherwise or f"there are {', '.join(known)}"
