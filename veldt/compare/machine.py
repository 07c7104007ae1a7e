# SPDX-License-Identifier: Apache-2.0
"""Describes the machine of a measurement."""

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


def machine() -> dict[str, Any]:
    """Hardware and versions of libraries."""
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
    """Versions of the libraries that are installed."""
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
