# SPDX-License-Identifier: Apache-2.0
"""Imported by the first workers of a private cluster, while the run is still being planned."""

import gc

gc.disable()  # imports only make objects that stay; looking through them takes a tenth

import gymnasium  # noqa: E402, F401
import torch  # noqa: E402, F401

import veldt.backends.ray.node  # noqa: E402
import veldt.environments  # noqa: E402, F401

gc.freeze()
gc.enable()
