# SPDX-License-Identifier: Apache-2.0
"""Utilization of cores, memory and GPUs during a run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil


class MachineMeter:
    """Reads the system's counters, in a fraction of a millisecond per call."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call starts the measurement
        self._processes: dict[int, psutil.Process] = {}
        self._nvml, self._gpus = _open_gpus()

    def read(self, process_ids: Iterable[int]) -> dict[str, float]:
        """Metrics by name; memory that the run's processes share counts repeatedly."""
        cores = memory = 0.0
        known, self._processes = self._processes, {}
        for number in set(process_ids):
            with suppress(psutil.Error):  # it may just have ended
                process = known.get(number) or psutil.Process(number)
                self._processes[number] = process
                cores += process.cpu_percent() / 100
                memory += process.memory_info().rss
        return {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": psutil.virtual_memory().percent,
            "system/run_cores": cores,
            "system/run_memory_mib": memory / 2**20,
            **self._read_gpus(),
        }

    def _read_gpus(self) -> dict[str, float]:
        found = {}
        for number, device in enumerate(self._gpus):
            with suppress(self._nvml.NVMLError):  # some devices do not report everything
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                busy = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu
                found[f"system/gpu_{number}_percent"] = float(busy)
                found[f"system/gpu_{number}_memory_percent"] = 100.0 * memory.used / memory.total
        return found

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._gpus = []


def _open_gpus() -> tuple[Any, list[Any]]:
    """NVML and its devices, if nvidia-ml-py (the extra `gpu`) and a driver are installed."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver or no device: no metrics of GPUs
        return None, []
    count = pynvml.nvmlDeviceGetCount()
    return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
