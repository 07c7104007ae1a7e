# SPDX-License-Identifier: Apache-2.0
"""The lag atlas repeats bit for bit, and its page follows from its rows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import lag_atlas
import lag_atlas_report as report

sys.path.pop(0)
KEYS = ("task", "correction", "lag", "seed")


def synthetic(returns, seeds=3):
    """A row per run; `returns(correction, lag)` is a share of the best return."""
    for task, correction, lag, seed in lag_atlas.cases():
        if seed < seeds:
            chance = lag_atlas.TASKS[task].chance
            score = returns(correction, lag) + 1e-3 * seed
            row = {"task": task, "correction": correction, "lag": lag, "seed": seed}
            yield {**row, "return": chance + 10.0 * score, "kl": 0.1, "ess": 0.5}


def test_a_lag_is_tolerated_while_nine_tenths_of_the_score_are_left():
    atlas = report.Atlas(
        list(synthetic(lambda name, lag: 0.5 if lag in (4, 256) else 1.0 - lag / 500))
    )
    assert atlas.tolerated("Catch", "none") == "32*"
    assert atlas.score("clip", 0) == pytest.approx([0.999, 1.0, 1.001], abs=1e-3)


def test_verdicts_follow_the_rule():
    falling = {"clip": 0.05, "none": 0.02}
    rows = synthetic(lambda name, lag: max(0.0, 1.0 - falling.get(name, 0.0) * lag))
    atlas = report.Atlas(list(rows))
    outcomes = {each.number: each.verdict(atlas)[0] for each in report.SENTENCES}
    assert outcomes["`clip`: 0 minus 4"] == "holds"
    assert outcomes["`vtrace` minus `one_step`, 4 to 64"] == "does not hold"
    assert outcomes["`tis` minus `none`, 8 to 64"] == "holds"


def test_a_correction_that_was_not_measured_is_left_out():
    rows = [r for r in synthetic(lambda *_: 1.0) if r["correction"] != "drop"]
    assert "`drop`" not in report.tables(report.Atlas(rows))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_runs_repeat_bit_for_bit():
    rows = lag_atlas.load()
    for row in rows[:: max(1, len(rows) // 20)]:
        if row.get("machine") != lag_atlas.machine():
            pytest.skip(f"measured with {row.get('machine')}, which decides the last bits")
        assert lag_atlas.measure(tuple(row[key] for key in KEYS)) == row
