# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes: the default on one machine."""
