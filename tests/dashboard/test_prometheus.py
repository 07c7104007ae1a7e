# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: odd names, several runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from veldt.dashboard.reading import RunView

pytest.importorskip("prometheus_client")
pytest.importorskip("nicegui")
from prometheus_client.parser import text_string_to_metric_families

from veldt.dashboard.server import exposition


def view(**latest: object) -> RunView:
    config = {"architecture": "impala", "options": {"env": "CartPole-v1", "seed": 1}}
    return RunView(config, "ended", curve=[{"time": 1.0, "env_steps": 1000, **latest}])


def test_odd_names_and_several_runs():
    odd = 'a "quoted"\\name\nof two lines'
    more = {f"info/{odd}": 2.0, "loss/policy-1": -1e-9, "lag/mean": None}
    runs = [(view(**{"info/height": 4.0}), Path("first")), (view(**more), Path("second"))]
    families = list(text_string_to_metric_families(exposition(runs).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, s.labels["run"], s.labels.get("name", "")): s.value for s in samples}
    assert found["veldt_up", "second", ""] == 0.0
    assert found["veldt_env_steps_total", "first", ""] == 1000
    assert found["veldt_info", "first", "height"] == 4.0
    assert found["veldt_info", "second", odd] == 2.0
    assert found["veldt_loss_policy_1", "second", ""] == -1e-9
    assert ("veldt_lag_mean", "second", "") not in found
