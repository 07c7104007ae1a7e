# SPDX-License-Identifier: Apache-2.0
"""Metrics of the machine."""

import os
import time

import psutil

from veldt.telemetry.machine_meter import MachineMeter


def test_cores_and_memory():
    meter = MachineMeter()
    meter.read([os.getpid()])
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    found = meter.read([os.getpid(), 2**22 + 1])  # one that is not there
    meter.close()
    assert 0 < found["system/cpu_percent"] <= 100
    assert 0 < found["system/memory_percent"] <= 100
    assert 0.1 < found["system/run_cores"] < 2
    rss = psutil.Process().memory_info().rss / 2**20
    assert abs(found["system/run_memory_mib"] - rss) < 50
