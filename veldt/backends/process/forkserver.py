# SPDX-License-Identifier: Apache-2.0
"""The fork server: a process that has imported what nodes need and forks them in milliseconds.

Started first thing by the command line, it imports torch on one core while the main process does
the same on another.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import cast

from veldt.backends.tuning import share_cores
from veldt.resources import raise_descriptor_limit


def server_context() -> ForkServerContext:
    return cast(ForkServerContext, multiprocessing.get_context("forkserver"))


def warm_up(*modules: str) -> None:
    """Start the fork server if it is not running. Returns at once; the imports, with those of
    `modules` as well, go on there."""
    share_cores()
    # Whether there is a GPU can then be asked without starting CUDA, which takes seconds.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    raise_descriptor_limit()
    server_context().set_forkserver_preload(["veldt.backends.process.preload", *modules])
    keep_running()
    # Imported here, once the server has begun: it takes longer than to start one.
    from veldt.environments.processes import claim, remove_leftovers

    claim(Path(get_temp_dir()))
    remove_leftovers()


def keep_running() -> None:
    """Start the fork server again if somebody ended it. Nodes that it made live on without it."""
    forkserver.ensure_running()
