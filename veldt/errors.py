# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """A bad input, with a remedy; the CLI prints it and exits with 2."""


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look most like this one; none if none is near."""
    return difflib.get_close_matches(name, list(known), n=most)


def did_you_mean(near: list[str], otherwise: str) -> str:
    """A hint for somebody who gave an unknown name: those `nearest` to it, or `otherwise`."""
    return f"did you mean {' or '.join(near)}?" if near else otherwise
