# SPDX-License-Identifier: Apache-2.0
"""Metrics of the machine: those of the system, and of GPUs where NVML is installed."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

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


class FakeNvml:
    NVMLError = ValueError

    def nvmlInit(self): ...  # noqa: N802

    def nvmlShutdown(self): ...  # noqa: N802

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number):  # noqa: N802
        return number

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        return SimpleNamespace(used=1, total=2)

    def nvmlDeviceGetUtilizationRates(self, device):  # noqa: N802
        if device:
            raise ValueError("not supported")
        return SimpleNamespace(gpu=50)


def test_a_gpu_that_reports_nothing_is_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    meter = MachineMeter()
    found = {name: value for name, value in meter.read([]).items() if "gpu" in name}
    assert found == {"system/gpu_0_percent": 50.0, "system/gpu_0_memory_percent": 50.0}
    meter.close()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert not any("gpu" in name for name in MachineMeter().read([]))
