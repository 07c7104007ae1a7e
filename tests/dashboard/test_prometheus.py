# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: odd names."""

import pytest

from veldt.dashboard.reading import RunView

pytest.importorskip("prometheus_client")
pytest.importorskip("nicegui")
from prometheus_client.parser import text_string_to_metric_families

from veldt.dashboard.server import exposition


def test_odd_names():
    odd = 'a "quoted"\\name\nof two lines'
    latest = {f"info/{odd}": 2.0, "loss/policy-1": -1e-9, "lag/mean": None}
    config = {"architecture": "impala", "options": {"env": "CartPole-v1", "seed": 1}}
    view = RunView(config, "ended", curve=[{"time": 1.0, "env_steps": 1000, **latest}])
    families = list(text_string_to_metric_families(exposition(view, "first").decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    assert {s.labels["run"] for s in samples} == {"first"}
    found = {(s.name, s.labels.get("name", "")): s.value for s in samples}
    assert found["veldt_up", ""] == 0.0
    assert found["veldt_env_steps_total", ""] == 1000
    assert found["veldt_info", odd] == 2.0
    assert found["veldt_loss_policy_1", ""] == -1e-9
    assert ("veldt_lag_mean", "") not in found
