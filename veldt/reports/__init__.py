# SPDX-License-Identifier: Apache-2.0
"""Experiments over many runs: comparisons and claims."""
