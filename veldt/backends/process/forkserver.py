# SPDX-License-Identifier: Apache-2.0
"""The fork server, a process with all imports done that forks node processes in milliseconds.

The command line starts it first, so that it imports torch on one core while the main process does
the same on another.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import cast

import psutil

from veldt.errors import ConfigurationError
from veldt.process_groups import temporary_folder
from veldt.resources import limit_library_threads, raise_descriptor_limit

_ANSWER_SECONDS = 0.5


def server_context() -> ForkServerContext:
    return cast(ForkServerContext, multiprocessing.get_context("forkserver"))


def warm_up(*modules: str) -> None:
    """Start the fork server, which imports `modules` too, unless it runs. Returns at once."""
    limit_library_threads()
    # torch can then report whether there is a GPU without starting CUDA, which takes seconds.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    raise_descriptor_limit()
    server_context().set_forkserver_preload(["veldt.backends.process.preload", *modules])
    # Killed environments leave semaphores, which the tracker removes; that is no reason to warn.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        forkserver.ensure_running()
    except OSError as error:
        raise ConfigurationError(
            f"cannot start processes with temporary files in {tempfile.gettempdir()} ({error}); set"
            " TMPDIR to another, shorter path"
        ) from error
    finally:
        sys.warnoptions.pop()
    temporary_folder()


@contextmanager
def kept_running() -> Iterator[None]:
    """Within the block, which waits for the fork server, continue the server if it is stopped."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_ANSWER_SECONDS):
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                        child.resume()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
