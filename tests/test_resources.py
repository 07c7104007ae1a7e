# SPDX-License-Identifier: Apache-2.0
"""What the machine is said to have."""

from __future__ import annotations

import os

import psutil

from veldt.resources import available_bytes, usable_cores


def test_cores_are_counted_where_the_system_knows_no_affinity(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


def test_available_memory_is_some_and_no_more_than_there_is():
    assert 0 < available_bytes() <= psutil.virtual_memory().total
