# SPDX-License-Identifier: Apache-2.0
"""`veldt claims`: rules that can come out either way, runs that are not repeated."""

import json
import math
import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.claims import command
from benchmarks.claims.claim import (
    DOES_NOT_HOLD,
    HOLDS,
    SMALL,
    UNDECIDED,
    Criterion,
    conclusion,
    seeds_to_decide,
)
from benchmarks.claims.double_buffering import predicted_saving
from benchmarks.claims.registry import CLAIMS
from benchmarks.claims.runner import judge, run_cases
from benchmarks.claims.two_learners import TwoLearners

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
CHEAP = ("two_learners", "a2c_without_lag")


def points(value, lag=0.0):
    gauges = dict.fromkeys(
        ("replay.mean_age_inserts", "dropped.stale", "dropped.outlier", "gradients_sent"), 1.0
    )
    ways = [0.5, 1.0, 1.5]
    return {"points": [{"evaluation_return": value * w, "updates": w, "env_steps": w,
                        "lag_mean": lag, "lag_max": lag, **gauges} for w in ways]}  # fmt: skip


def async_actors(case, gain):
    workers = case["workers"]
    return {
        "correlation": 0.5 - 0.4 * gain * math.log2(workers) / 2,
        "env_steps_per_second": 200.0 * workers ** (0.5 + 0.4 * gain),
    }


def a2c_without_lag(case, gain):
    is_a2c = case["system"] == "a2c"
    return points(0.5 + (0.4 * gain if is_a2c else 0.0), lag=0.0 if is_a2c else 3.0)


def ga3c_controller(case, gain):
    rate = 1000 * (0.9 + 0.3 * gain if case["setting"] == "found" else 1.0)
    return {"trained_steps_per_second": rate, "counts": [2, 1, 1]}


def two_learners(case, gain):
    off = 1e-6 if gain > 0 else 0.1
    return {"two_learners": [off, off], "half_the_data": [0.1, 0.5]}


def central_inference(case, gain):
    central = case["architecture"] != "impala"
    wide = math.log2(case["width"] / 32) / 5
    rate = 1000 * (1 - 0.1 * central + 0.5 * gain * wide * central)
    return {"trained_steps_per_second": rate, "learner_waits": 0.2}


def double_buffering(case, gain):
    two = case["groups"] == 2
    return {
        "seconds_per_row": 0.024 * (1 - 0.3 * gain * two),
        "stepping_share": 0.6 + 0.2 * gain * two,
        "waiting_share": 0.3,
    }


def actor_priorities(case, gain):
    with_ = case["actor_priorities"]
    found = points(100 + 50 * gain * with_)
    for point in found["points"]:
        point["replay.mean_age_inserts"] = 100 * (2 + gain if with_ else 1)
    return found


def stragglers(case, gain):
    kept = 0.9 if case["system"] != "a2c" else 0.8 - 0.4 * gain
    rate = 1000 * (kept if case["straggles"] else 1.0)
    return {"env_steps_per_second": rate, "waits": 0.5}


def replay_tolerates_lag(case, gain):
    lost = {"apex": 0.2 - 0.18 * gain, "impala": 0.2 + 0.18 * gain}[case["system"]]
    return points(0.5 - (lost if case["lagging"] else 0.0))


def a3c_many_workers(case, gain):
    many = case["workers"] > 1
    return points(0.5 - 0.4 * gain * many, lag=2 * many + 1.5 * gain * many)


def ga3c_on_a_gpu(case, gain):
    faster = (
        (4 + 4 * gain) * (case["width"] / 64) ** (0.1 * gain) if case["system"] == "ga3c" else 1
    )
    return {"trained_steps_per_second": 1000.0 * faster}


def vtrace_fixed_point(case, gain):
    is_vtrace = case["correction"] == "vtrace"
    return {"from_clipped": 1e-9, "from_target": 1.0 - 0.5 * gain * is_vtrace}


def importance_variance(case, gain):
    grown = 10 ** (1 + gain) if case["lag"] > 1 else 1.0
    return {"plain": grown, "clipped": grown * (0.1 - 0.09 * gain)}


def weight_traffic(case, gain):
    grows = 20.0 if (case["system"] == "impala") == (gain > 0) else 1.0
    return {"down": grows if case["width"] > 16 else 1.0, "up": 1.0}


OWN = (
    stragglers, replay_tolerates_lag, a3c_many_workers, vtrace_fixed_point, importance_variance,
    weight_traffic, async_actors, a2c_without_lag, ga3c_controller, actor_priorities,
    ga3c_on_a_gpu, two_learners, central_inference, double_buffering,
)  # fmt: skip
SYNTHETIC = {
    **{function.__name__: function for function in OWN},
    "gorila_wall_time": lambda case, gain: {
        "seconds": 20.0 * (1 + 0.5 * gain if case["system"] == "dqn" else 1.0)
    },
    "gorila_replay_traffic": lambda case, gain: {
        "bytes": 1.2 + gain if case["replay"] == "global" else 1.0
    },
    "same_agent": lambda case, gain: {"digest": case["backend"] if gain < 0 else "same"},
    "more_actors": lambda case, gain: points(0.1 + 0.05 * gain * case["actors"]),
    **dict.fromkeys(
        ("vtrace_under_lag", "ga3c_vtrace"),
        lambda case, gain: points(0.5 * gain * (case["correction"] == "vtrace")),
    ),
    "a2c_beats_a3c": a2c_without_lag,
    "vtrace_replay": lambda case, gain: points(
        0.5 * gain * (case["replay"] and case["correction"] == "vtrace")
    ),
    "central_inference_on_a_gpu": central_inference,
    "shared_rmsprop": lambda case, gain: points(
        0.5
        - 0.4
        * gain
        * ("shared RMSProp", "RMSProp of each worker", "momentum SGD").index(case["optimizer"])
    ),
    "ladder_and_priorities": lambda case, gain: points(
        0.2 + 0.3 * gain * case["arm"].startswith("ladder")
    ),
    "gorila_dropping": lambda case, gain: points(100 + 50 * gain * case["dropping"]),
}


def synthetic_rows(claim, gain):
    """What the claim would have measured if its effect had the size and sign of `gain`; seeds
    differ a little."""
    rows = []
    for case in claim.cases():
        own = gain + 0.02 * (case["seed"] % 3 - 1)
        rows.append({**case, **SYNTHETIC[claim.name](case, own)})
    return rows


def test_every_claim_explains_itself():
    assert set(CLAIMS) == set(SYNTHETIC)
    for name, kind in CLAIMS.items():
        assert kind.name == name
        for text in (kind.statement, kind.paper, kind.rule, kind.caption):
            assert len(text) > 20, (name, text)
        assert re.search(r"above|below|more than|higher|closer|is 0", kind.rule), (
            "the rule names its bound"
        )


@pytest.mark.parametrize("name", CLAIMS)
def test_a_rule_says_yes_to_supporting_data_and_no_to_contrary_data(name):
    claim = CLAIMS[name]()
    supporting, contrary = (synthetic_rows(claim, gain) for gain in (1.0, -1.0))
    assert judge(claim, supporting, 0.0).outcome == HOLDS
    assert judge(claim, contrary, 0.0).outcome == DOES_NOT_HOLD
    assert judge(claim, contrary, 0.0, quick=True).text == "quick: does not hold"


EXACT = {"two_learners", "same_agent", "weight_traffic", "gorila_replay_traffic"}


@pytest.mark.parametrize("name", sorted(set(CLAIMS) - EXACT))
def test_seeds_that_disagree_decide_nothing(name):
    """Half of the seeds for it, half against."""
    claim = replace(CLAIMS[name](), seeds=min(CLAIMS[name].seeds, 40))
    rows = [
        {**case, **SYNTHETIC[name](case, 1.0 if case["seed"] % 2 else -1.0)}
        for case in claim.cases()
    ]
    assert judge(claim, rows, 0.0).outcome == UNDECIDED


@pytest.mark.parametrize("name", CLAIMS)
def test_every_figure_can_be_drawn(name, tmp_path):
    from benchmarks.claims.runner import draw

    claim = CLAIMS[name]()
    draw(claim, synthetic_rows(claim, 1.0), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, HOLDS),
        (-0.3, 0.15, DOES_NOT_HOLD),  # shown to be less than matters, though it may be above 0
        (0.05, 0.15, SMALL),  # above 0, and too little to matter
        (-0.1, 0.3, UNDECIDED),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_verdict_tells_size_from_certainty(low, high, expected, sign):
    low, high = sorted((sign * low, sign * high))
    part = Criterion("x", (low + high) / 2, low, high, 0.0, sign > 0, matters=0.2 * sign)
    assert part.outcome == expected


def test_a_conclusion_is_one_sentence_and_says_how_many_seeds_would_decide():
    good, bad = Criterion("a ratio", 2.0, 1.5, 2.5, 1.0), Criterion("a ratio", 0.5, 0.4, 0.6, 1.0)
    unsure = Criterion("a ratio", 1.1, 0.9, 1.3, 1.0)
    assert conclusion(HOLDS, [good], 5) == "It holds here: a ratio is 2 [1.5, 2.5], above 1."
    assert conclusion(DOES_NOT_HOLD, [good, bad], 5).startswith("It does not hold here: a ratio is")
    assert "about 22 seeds would decide it" in conclusion(UNDECIDED, [good, unsure], 5)
    small = Criterion("a gain", 0.01, -0.1, 0.1, 0.0, matters=0.2)
    assert "not above 0.2, the least that matters" in conclusion(DOES_NOT_HOLD, [small], 5)
    assert seeds_to_decide(Criterion("", 1.0, 0.5, 1.5, 1.0), 5) is None
    assert conclusion(UNDECIDED, [], 5) == "Nothing was measured."


def test_predicted_saving_by_hand():
    row, waiting = np.array([6.0, 6.0, 6.0]), np.array([2.0, 4.0, 0.0])
    # Hidden fully (4 busy of 6); half hidden (1 + 4); nothing to hide.
    np.testing.assert_allclose(predicted_saving(row, waiting, 1.0), [1 / 3, 1 / 6, 0.0])
    # A server that needs 3 per answer gives two answers per row at best.
    np.testing.assert_allclose(predicted_saving(row[:1], waiting[:1], 3.0), [0.0])


def test_the_tabular_fixed_point_is_exact():
    claim = CLAIMS["vtrace_fixed_point"]().quick()
    rows = [{**case, **claim.measure(case)} for case in claim.cases()]
    assert max(r["from_clipped"] for r in rows if r["correction"] == "vtrace") < 1e-6
    assert min(r["from_clipped"] for r in rows if r["correction"] == "none") > 1e-3


def test_finished_cases_are_kept_while_the_settings_are_the_same(tmp_path):
    said = []
    claim = TwoLearners(envs=2, updates=3, seeds=1)
    first, seconds = run_cases(claim, tmp_path, said.append)
    assert run_cases(claim, tmp_path, said.append) == (first, seconds)
    other, _ = run_cases(TwoLearners(envs=2, updates=4, seeds=1), tmp_path, said.append)
    assert [len(rows[0]["two_learners"]) for rows in (first, other)] == [3, 4]
    assert ["finished before" in text for text in said] == [False, True, False]


def test_results_are_complete(tmp_path):
    out = tmp_path / "out"
    assert command.examine_all(CHEAP, str(out), quick=True) == 0
    document = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in document["claims"]] == ["a2c_without_lag", "two_learners"]
    for entry in document["claims"]:
        assert entry["verdict"].startswith("quick: ")
        assert entry["outcome"] in (HOLDS, DOES_NOT_HOLD, UNDECIDED)
        assert {"statement", "rule", "parts", "rows", "settings"} <= set(entry)
        assert (out / entry["figure"]).read_bytes().startswith(b"\x89PNG")
    two = document["claims"][1]
    assert two["outcome"] == HOLDS, "two learners are one with the joined batch, quick or not"


def test_an_experiment_that_breaks_is_reported_and_the_others_run(tmp_path, monkeypatch, capsys):
    def broken(self, case):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(CLAIMS["a2c_without_lag"], "measure", broken)
    monkeypatch.setattr("benchmarks.claims.runner.usable_cores", lambda: 1)  # here, not elsewhere
    assert command.examine_all(CHEAP, str(tmp_path), quick=True) == 1
    entries = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert [entry["verdict"] for entry in entries] == ["quick: undecided", "quick: holds"]
    assert "no such luck" in entries[0]["notes"][0]
    assert "no such luck" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--only", "two_learner"), "did you mean two_learners?"),
        (("--only", "x"), "there are gorila_wall_time"),
        (("--quick", "--full"), "give one of them"),
        (("--only", "ga3c_on_a_gpu"), "add --gpu"),
        pytest.param(
            ("--gpu",),
            "--gpu needs a CUDA device and torch sees none",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (("--out", "/dev/null/x"), "choose another --out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys, arguments,
                                                     remedy):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    assert remedy in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_in_the_documentation_is_what_the_code_says():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    bare = generate["without_measurements"]
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert bare(written) == bare(generate["claims_page"]()), "run: python docs/generate.py --readme"
