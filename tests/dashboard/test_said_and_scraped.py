# SPDX-License-Identifier: Apache-2.0
"""What environments said and were told is on the page, and in what Prometheus reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import veldt
from veldt.dashboard.metric_charts import METRIC_CHARTS
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


def lines(view):
    """Names and last values of what the page draws of environments, by chart."""
    drawn = {
        each.title: each.options(view) for each in METRIC_CHARTS if "environment" in each.title
    }
    return {
        title: {one["name"]: one["data"][-1][1] for one in each["series"]}
        for title, each in drawn.items()
        if each
    }


def test_the_page_draws_what_environments_said_and_were_told(view):
    said, told = lines(view).values()
    assert set(said) == {"is success", "height", "episode/stairs"}
    assert said["height"] == 3.0
    assert told == {"height": 3.0}


def test_a_run_whose_environments_say_nothing_has_no_such_chart(view):
    metrics = {"return/mean_length_100": 1.0}
    silent = replace(view, curve=[replace(point, metrics=metrics) for point in view.curve])
    assert lines(silent) == {}


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
