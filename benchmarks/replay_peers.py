# SPDX-License-Identifier: Apache-2.0
"""Environments for the replay libraries that Veldt is compared with, made once under .peers/."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / ".peers"
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Peer:
    """What to install, and the import that proves it works."""

    name: str
    packages: tuple[str, ...]
    probe: str
    contestants: tuple[str, ...]

    @property
    def distribution(self) -> str:
        return self.packages[-1].split("=")[0].split("[")[0]


ALL = (
    Peer("cpprb", ("cpprb==11.0.0",), "import cpprb", ("cpprb", "cpprb_compressed")),
    Peer(
        "torchrl",
        ("torch==2.13.0", "torchrl==0.14.1"),  # the pin makes pip take the CPU build
        "import torchrl._torchrl",
        ("torchrl",),
    ),
    Peer("reverb", ("dm-reverb[tensorflow]==0.14.0",), "import reverb", ("reverb",)),
)


def prepare(peer: Peer) -> tuple[Path, str]:
    """The peer's Python and a note on how it got there; RuntimeError if it cannot be had."""
    home = PEERS / peer.name
    python = home / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(home)], "no environment")
    note = ""
    if not _works(python, peer.probe):
        _run([str(python), "-m", "pip", "install", "-q", *peer.packages], "not installable")
    if peer.name == "torchrl":
        note = _rebuild_torchrl(python, peer.probe)
    if not _works(python, peer.probe):
        raise RuntimeError(f"installed, but '{peer.probe}' fails")
    return python, note


def version(python: Path, package: str) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _works(python: Path, probe: str) -> bool:
    done = subprocess.run(
        [str(python), "-c", f"import torch; {probe}" if "torch" in probe else probe],
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode == 0


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{failure} within {INSTALL_SECONDS} s") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(f"{failure}: {words[-1]}")


def _rebuild_torchrl(python: Path, probe: str) -> str:
    """The wheel's compiled part asks for symbols that torch 2.13 lacks; it ships its sources."""
    marker = python.parent.parent / "rebuilt"
    if not _works(python, probe):
        program = "import torch, torchrl, os; print(os.path.dirname(torch.__file__));"
        program += "print(os.path.dirname(torchrl.__file__))"
        done = subprocess.run(
            [str(python), "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
        )
        torch_home, home = (Path(line) for line in done.stdout.split()[-2:])
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        headers = [torch_home / "include", torch_home / "include/torch/csrc/api/include"]
        headers.append(Path(sysconfig.get_path("include")))
        command = ["g++", "-O3", "-std=c++20", "-shared", "-fPIC", "-fopenmp"]
        command += ["-DTORCH_EXTENSION_NAME=_torchrl", *(f"-I{path}" for path in headers)]
        command += [str(home / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
        command += [f"-L{torch_home / 'lib'}", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
        built = home / f"rebuilt{suffix}"
        _run([*command, "-o", str(built)], "its C++ part neither loads nor builds")
        built.replace(home / f"_torchrl{suffix}")
        marker.touch()
    note = "its C++ part rebuilt from the sources in the wheel: the compiled one does not load"
    return note if marker.exists() else ""
