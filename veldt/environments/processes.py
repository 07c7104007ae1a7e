# SPDX-License-Identifier: Apache-2.0
"""Processes for environments, and pipes to them: the one place outside the backends that makes any.

Which processes a run has is for its backend to say. An environment in a process of its own is the
exception, since whoever steps it must also make it: an actor of any backend, the plan that measures
it, or `veldt evaluate`, which has no backend at all.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from veldt.environments.leftovers import claim

__all__ = ["Connection", "pipe", "process_context", "start"]


def process_context() -> Any:
    """Not a plain fork: the process that steps environments may already run threads."""
    return multiprocessing.get_context("forkserver")


def pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    ends: tuple[Connection, Connection] = process_context().Pipe(duplex)
    return ends


def start(run: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that runs `run`."""
    process: BaseProcess = process_context().Process(target=run, args=arguments)
    process.start()
    claim(Path(get_temp_dir()))
    return process
