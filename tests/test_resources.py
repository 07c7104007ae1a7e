# SPDX-License-Identifier: Apache-2.0
"""What the machine is said to have."""

from __future__ import annotations

import os

import psutil
import pytest

from veldt.resources import available_bytes, has_bfloat16, limit_library_threads, usable_cores


def test_cores_are_counted_where_the_system_knows_no_affinity(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


def test_available_memory_is_some_and_no_more_than_there_is():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512_bf16 rdpid", True),
        ("fpu amx_bf16 amx_tile", True),
        ("fpu avx2 avx512f avx512_vnni", False),
        ("fpu not_avx512_bf16", False),
    ],
)
def test_bfloat16_is_told_from_the_flags_of_a_core(flags, expected):
    core = f"processor\t: 0\nmodel name\t: avx512_bf16 in name only\nflags\t\t: {flags}\n"
    assert has_bfloat16(2 * core) is expected


def test_no_flags_no_bfloat16():
    assert not has_bfloat16("processor : 0\nFeatures : fp asimd bf16\n")


def test_numbers_of_threads_that_the_user_has_set_are_kept(monkeypatch):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    limit_library_threads()
    assert [os.environ.get(name) for name in names] == ["3", "1", "20000", None]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    limit_library_threads()
    assert "GOMP_SPINCOUNT" not in os.environ
