# SPDX-License-Identifier: Apache-2.0
"""What the machine is said to have."""

import os

import pytest

from veldt.resources import limit_library_threads, multiplies_bfloat16, usable_cores


def test_cores_are_counted_where_the_system_knows_no_affinity(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags : fpu avx2 avx512_bf16 rdpid", True),
        ("flags : fpu amx_bf16 amx_tile", True),
        ("flags : fpu avx512f not_avx512_bf16", False),
        ("Features : fp asimd bf16", False),
    ],
)
def test_bfloat16_is_told_from_the_flags_of_a_core(line, expected, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(2 * f"processor\t: 0\nmodel name\t: avx512_bf16 in name only\n{line}\n")
    assert multiplies_bfloat16(file) is expected


def test_numbers_of_threads_that_the_user_has_set_are_kept(monkeypatch):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    limit_library_threads()
    assert [os.environ.get(name) for name in names] == ["3", "1", None, "passive"]
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "20000")
    limit_library_threads()
    assert "OMP_WAIT_POLICY" not in os.environ
