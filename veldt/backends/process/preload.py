# SPDX-License-Identifier: Apache-2.0
"""Imported once by the fork server, so that forked nodes start without importing anything."""

import contextlib

import gymnasium  # noqa: F401
import numpy  # noqa: F401
import torch  # noqa: F401

import veldt.backends.process.worker
import veldt.environments  # noqa: F401

with contextlib.suppress(ImportError):
    import ale_py  # noqa: F401
