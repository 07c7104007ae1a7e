# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run ask of the libraries below Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from veldt.backends.tuning import share_cores

ALLOCATING = """
import resource, sys
import numpy as np
from veldt.backends.tuning import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for round in range(40):
    if round == 10:
        before = faults()
    arrays = [np.ones(3 << 19) for _ in range(3)]  # 12 MiB each: together more than glibc keeps
    del arrays
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_freed_memory_is_used_again_without_the_kernel():
    """Counted in pages that the kernel had to hand out, small ones if it may choose."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}

    def pages(how: str) -> int:
        command = [sys.executable, "-c", ALLOCATING, how]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return int(found.stdout)

    assert pages("kept") < pages("given back") // 10


def test_what_the_user_has_set_stays(monkeypatch):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    share_cores()
    assert [os.environ.get(name) for name in names] == ["3", "1", "20000", None]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    share_cores()
    assert "GOMP_SPINCOUNT" not in os.environ
