# SPDX-License-Identifier: Apache-2.0
"""Imported once by the fork server, so that forked nodes start without importing anything."""

import contextlib
import gc
import signal

# First of all: a signal to the whole group is the supervisor's to handle, which still needs us.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
gc.disable()

import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401
import torch  # noqa: E402, F401

import veldt.backends.process.worker  # noqa: E402
import veldt.environments  # noqa: E402, F401

with contextlib.suppress(ImportError):
    import ale_py.vector_env  # noqa: F401

# What is here stays, in every node's memory: nobody need look through it, or copy it, ever again.
gc.freeze()
gc.enable()
