# SPDX-License-Identifier: Apache-2.0
"""Memory of a process and its descendants, and the machine they run on, as Linux reports them."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import veldt
from veldt.resources import usable_cores

_LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py", "envpool", "ray")


def tree_bytes(pid: int) -> int | None:
    """Proportional set size of the process and all below it: a shared page counts once, in parts.
    None where the kernel does not tell."""
    sizes = [size for member in _descendants(pid) if (size := _proportional_bytes(member))]
    return sum(sizes) if sizes else None


def _descendants(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        member = todo.pop()
        found.append(member)
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                todo.extend(map(int, children.read_text(encoding="ascii").split()))
            except OSError:
                continue
    return found


def _proportional_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = (int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return next(sizes, None)


def machine() -> dict[str, Any]:
    """Where and with what something was measured."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory": f"{_total_memory() / 2**30:.1f} GiB",
        "gpu": _gpu(),
        "system": f"{platform.system()} {platform.release()}",
        "load average": f"{os.getloadavg()[0]:.2f} when the report was made",
        "python": platform.python_version(),
        "veldt": veldt.__version__,
        **_versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
