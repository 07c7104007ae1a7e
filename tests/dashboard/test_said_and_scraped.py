# SPDX-License-Identifier: Apache-2.0
"""What environments said and were told is on the page, and in what Prometheus reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import veldt
from veldt.dashboard.episode_info import has_episode_info, table
from veldt.dashboard.prometheus import exposition
from veldt.dashboard.reading import RunReader


class Told(veldt.Callback):
    def on_start(self):
        self.set_environment(height=3)


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    veldt.train(
        "impala", "veldt/Stairs-v0", [Told()], backend="serial", total_env_steps=1_000,
        evaluation_episodes=0, run_dir=str(path), trackers=("none",),
    )  # fmt: skip
    return RunReader(path).read()


def test_the_table_has_a_row_for_each_name(view):
    assert has_episode_info(view)
    rows = table(view).split("<tr")
    assert sum('data-info="info/' in row for row in rows) == 3
    assert '<tr data-info="info/is_success"><td>is_success</td><td>said</td>' in table(view)
    [told] = [row for row in rows if "environment/height" in row]
    assert "<td>told</td><td>3.00</td>" in told


def test_a_run_whose_environments_say_nothing_has_no_table(view):
    silent = replace(view, latest={"return/mean_100": 1.0})
    assert not has_episode_info(silent)
    assert table(silent) == ""


def test_prometheus_reads_odd_names_and_several_runs(view):
    parser = pytest.importorskip("prometheus_client.parser")
    odd = 'a "quoted"\\name\nof two lines'
    latest = {"time": 1.0, f"info/{odd}": 2.0, "loss/policy-1": -1e-9, "lag/mean": None}
    runs = [(view, Path("first")), (replace(view, latest=latest), Path("second"))]
    families = list(parser.text_string_to_metric_families(exposition(runs)))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, s.labels["run"], s.labels.get("name", "")): s.value for s in samples}
    assert found["veldt_up", "second", ""] == 0.0
    assert found["veldt_info", "first", "height"] == 3.0
    assert found["veldt_info", "second", odd] == 2.0
    assert found["veldt_loss_policy_1", "second", ""] == -1e-9
    assert ("veldt_lag_mean", "second", "") not in found


def test_runs_of_the_same_name_stay_two(view):
    text = exposition([(view, Path("a/run")), (view, Path("b/run"))])
    lines = text.splitlines()
    assert len(lines) == len(set(lines))
    assert 'run="a/run"' in text
