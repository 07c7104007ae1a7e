# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """A bad input, with a remedy; the CLI prints it and exits with 2."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy for a name that is not known: the one nearest to it, or `otherwise`."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else otherwise
