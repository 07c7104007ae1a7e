# SPDX-License-Identifier: Apache-2.0
"""Checks before the start that the nodes of a topology can be sent to other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from veldt.errors import ConfigurationError
from veldt.role import leaves_of
from veldt.topology import End, Topology

_REMEDY = "define it at the top level of a module, or use --backend serial"


def check_can_be_sent(topology: Topology) -> None:
    """Refuse what cannot be pickled, such as a lambda, a local function or an open file."""
    for node_name, argument, value in _distinct_arguments(topology):
        try:
            text = bytes(ForkingPickler.dumps(value))
        except Exception as error:  # a user's object may raise anything
            raise ConfigurationError(
                f"{argument} of {node_name} cannot be sent to another process"
                f" ({' '.join(str(error).split())}); {_REMEDY}"
            ) from error
        if b"__main__" in text and not _main_is_a_file():
            raise ConfigurationError(
                f"{argument} of {node_name} was defined at a prompt or in a notebook, where other"
                f" processes cannot find it; {_REMEDY}"
            )


def _distinct_arguments(topology: Topology) -> Iterator[tuple[str, str, Any]]:
    seen = set()
    for node in topology.nodes:
        for argument, value in leaves_of(node.role):
            if id(value) not in seen and not isinstance(value, End):
                seen.add(id(value))
                yield node.name, argument, value


def _main_is_a_file() -> bool:
    """Whether a node process can import this program's main module again."""
    main = sys.modules["__main__"]
    return main.__spec__ is not None or getattr(main, "__file__", None) is not None
