# SPDX-License-Identifier: Apache-2.0
"""Servers that answer for many actors in one forward pass."""
