# SPDX-License-Identifier: Apache-2.0
"""What is wrong with what a user asked for, said before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """Bad input. The message names the remedy."""


def nearest(given: str, known: Iterable[str]) -> str:
    """A hint for a name that is not among `known`."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
