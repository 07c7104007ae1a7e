# SPDX-License-Identifier: Apache-2.0
"""One Ray actor per group of nodes, on one machine or many."""
