# SPDX-License-Identifier: Apache-2.0
"""How busy the machine is while a run goes on: cores, memory, GPUs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress

import psutil

_QUERY = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_MEBIBYTE = 2.0**20


class MachineMeter:
    """Reads what the system counts anyway; a fraction of a millisecond, about once per second."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # counts from here
        self._processes: dict[int, psutil.Process] = {}
        self._gpus = GpuMeter()

    def read(self, process_ids: Iterable[int]) -> dict[str, float]:
        """Metrics by name; `process_ids` are the run's processes on this machine."""
        cores, memory = self._of_processes(set(process_ids))
        return {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": psutil.virtual_memory().percent,
            "system/run_cores": cores,
            "system/run_memory_mib": memory / _MEBIBYTE,
            **self._gpus.read(),
        }

    def close(self) -> None:
        self._gpus.close()

    def _of_processes(self, process_ids: set[int]) -> tuple[float, float]:
        """Cores in use since the last call, and bytes of memory; shared ones count for each."""
        known = {number: p for number, p in self._processes.items() if number in process_ids}
        self._processes = known
        cores = memory = 0.0
        for number in process_ids:
            with suppress(psutil.Error):  # it may just have ended
                process = known.setdefault(number, psutil.Process(number))
                cores += process.cpu_percent() / 100
                memory += process.memory_info().rss
        return cores, memory


class GpuMeter:
    """NVIDIA's GPUs, by its own command where there is one. It is not waited for: what is told is
    what it said last."""

    def __init__(self) -> None:
        self._command = shutil.which("nvidia-smi")
        self._asked: subprocess.Popen[str] | None = None
        self._known: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        if self._command is None:
            return {}
        if self._asked is not None and self._asked.poll() is not None:
            said, _ = self._asked.communicate()
            self._known = parsed(said) if self._asked.returncode == 0 else {}
            self._asked = None
        if self._asked is None:
            try:
                self._asked = subprocess.Popen(
                    [self._command, *_QUERY],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            except OSError:
                self._command = None
        return self._known

    def close(self) -> None:
        if self._asked is not None:
            self._asked.kill()
            self._asked.communicate()
            self._asked = None


def parsed(said: str) -> dict[str, float]:
    """One line per GPU: percent busy, MiB used, MiB there is; "[N/A]" where it does not know."""
    found = {}
    for number, line in enumerate(said.splitlines()):
        with suppress(ValueError):
            busy, used, there = (float(part) for part in line.split(","))
            found[f"system/gpu_{number}_percent"] = busy
            found[f"system/gpu_{number}_memory_percent"] = 100 * used / max(there, 1.0)
    return found
