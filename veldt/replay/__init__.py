# SPDX-License-Identifier: Apache-2.0
"""Replay as plain single-threaded data: stores, samplers and the rate limiter.

A store cuts items out of trajectories and copies them into batches; a sampler chooses them.
"""

from veldt.replay.items import Changes
from veldt.replay.samplers import PrioritizedSampler, RateLimiter, UniformSampler
from veldt.replay.sequences import SequenceStore
from veldt.replay.transitions import TransitionStore

__all__ = [
    "Changes",
    "PrioritizedSampler",
    "RateLimiter",
    "SequenceStore",
    "TransitionStore",
    "UniformSampler",
]
