# SPDX-License-Identifier: Apache-2.0
"""What is wrong with what a user asked for, said before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """Bad input. The message names the remedy; the command line prints it and exits with 2."""


def did_you_mean(
    given: str, known: Iterable[str], otherwise: str | None = None, most: int = 1
) -> str:
    """The remedy for a name that is not known: those nearest to it, or `otherwise`."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=most)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"there are {', '.join(sorted(known))}"
