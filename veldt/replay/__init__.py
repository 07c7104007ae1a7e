# SPDX-License-Identifier: Apache-2.0
"""Replay as plain single-threaded data: stores, samplers and the rate limiter.

A store cuts items out of trajectories and copies them into batches; a sampler chooses them.
"""
