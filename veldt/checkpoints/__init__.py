# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: their files, which are verified before use, and the store of those of one run."""
