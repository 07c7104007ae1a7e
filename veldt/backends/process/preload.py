# SPDX-License-Identifier: Apache-2.0
"""Imported once by the fork server, so that forked node processes import nothing."""

import contextlib
import gc
import signal

# First of all: a signal to the process group is handled by the supervisor, which needs this server.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
gc.disable()

import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401
import torch  # noqa: E402, F401

import veldt.backends.process.node_process  # noqa: E402
import veldt.environments  # noqa: E402, F401

with contextlib.suppress(ImportError):
    import ale_py.vector_env  # noqa: F401

# These objects stay in every node process: collecting garbage among them would copy their pages.
gc.freeze()
gc.enable()
