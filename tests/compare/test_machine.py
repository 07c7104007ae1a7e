# SPDX-License-Identifier: Apache-2.0
"""Memory of a tree of processes."""

from __future__ import annotations

import subprocess
import sys

from veldt.compare.machine import machine, tree_bytes

_MEBIBYTE = 2**20
_CHILD = "import sys; kept = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_CHILD!r}])"


def test_the_memory_of_children_counts():
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        assert 64 * _MEBIBYTE < tree_bytes(process.pid) < 256 * _MEBIBYTE
    finally:
        process.communicate()
    assert tree_bytes(process.pid) is None


def test_the_machine_is_described():
    assert {"cpu", "cores", "memory", "gpu", "torch", "veldt"} <= set(machine())
