# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: odd names, several runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import veldt
from veldt.dashboard.reading import RunReader

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from veldt.dashboard.prometheus import exposition


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    veldt.train(
        "impala", "veldt/Stairs-v0", backend="serial", total_env_steps=1_000,
        evaluation_episodes=0, run_dir=str(path), trackers=("none",),
    )  # fmt: skip
    return RunReader(path).read()


def test_odd_names_and_several_runs(view):
    odd = 'a "quoted"\\name\nof two lines'
    latest = {"time": 1.0, f"info/{odd}": 2.0, "loss/policy-1": -1e-9, "lag/mean": None}
    runs = [(view, Path("first")), (replace(view, latest=latest), Path("second"))]
    families = list(text_string_to_metric_families(exposition(runs).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, s.labels["run"], s.labels.get("name", "")): s.value for s in samples}
    assert found["veldt_up", "second", ""] == 0.0
    assert found["veldt_env_steps_total", "first", ""] >= 1_000
    assert found["veldt_info", "first", "height"] == 4.0
    assert found["veldt_info", "second", odd] == 2.0
    assert found["veldt_loss_policy_1", "second", ""] == -1e-9
    assert ("veldt_lag_mean", "second", "") not in found


def test_runs_of_the_same_name_stay_two(view):
    lines = exposition([(view, Path("a/run")), (view, Path("b/run"))]).decode().splitlines()
    assert len(lines) == len(set(lines))
    assert any('run="a/run"' in line for line in lines)
