# SPDX-License-Identifier: Apache-2.0
"""Standard output that carries JSON and nothing else, whatever environments print."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_reserved: TextIO | None = None


def reserve() -> None:
    """Keep standard output for `stream`; what anybody else writes there goes to standard error."""
    global _reserved
    if _reserved is None:
        sys.stdout.flush()
        _reserved = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)


def stream() -> TextIO:
    """Where a result is written."""
    return sys.stdout if _reserved is None else _reserved
