# SPDX-License-Identifier: Apache-2.0
"""The machine's numbers are those of the system, and nobody waits for a GPU's."""

from __future__ import annotations

import os
import time

import psutil

from veldt.telemetry.machine_meter import GpuMeter, MachineMeter, parsed


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


def test_lines_of_several_gpus():
    assert parsed("37, 1024, 4096\n[N/A], 5, 10\n0, 0, 81920\n") == {
        "system/gpu_0_percent": 37.0,
        "system/gpu_0_memory_percent": 25.0,
        "system/gpu_2_percent": 0.0,
        "system/gpu_2_memory_percent": 0.0,
    }


def test_a_gpu_is_asked_without_waiting(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nsleep 0.3\necho 50, 1, 2\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    meter = GpuMeter()
    began = time.monotonic()
    assert meter.read() == {}
    assert time.monotonic() - began < 0.3
    while not (found := meter.read()):
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    meter.close()
    assert found == {"system/gpu_0_percent": 50.0, "system/gpu_0_memory_percent": 50.0}
