# SPDX-License-Identifier: Apache-2.0
"""Memory of a process and its descendants, and the machine that they run on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import veldt
from veldt.resources import usable_cores

_LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py", "envpool", "ray")


def tree_bytes(pid: int) -> int | None:
    """Proportional set size of the process and all below it: a shared page counts once, in parts.
    None where the kernel does not tell."""
    sizes = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error, AttributeError):  # it ended, or this is not Linux
                sizes.append(process.memory_full_info().pss)
    return sum(sizes) or None


def machine() -> dict[str, Any]:
    """Where and with what something was measured."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.release()}",
        "load average": f"{os.getloadavg()[0]:.2f} when the report was made",
        "python": platform.python_version(),
        "veldt": veldt.__version__,
        **versions(_LIBRARIES),
    }


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for library in libraries:
        with suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found


def cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
