# SPDX-License-Identifier: Apache-2.0
"""Queues, boards and streams over memory that nodes share, in one process or between several."""
