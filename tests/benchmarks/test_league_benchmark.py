# SPDX-License-Identifier: Apache-2.0
"""The league's benchmark in short: verdicts."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import league  # noqa: E402
import league_arms  # noqa: E402


def entries(values: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Finished runs of arms at one entropy, with these NashConvs."""
    found = {}
    for arm, numbers in values.items():
        for seed, number in enumerate(numbers):
            name = league_arms.job_name(arm, 0.1)
            final = {"nash_conv.last": number, "nash_conv.mixture": number + 1.0}
            found[f"{name}-{seed}"] = {"name": name, "seed": seed, "finished": True, "final": final}
    return found


def test_an_arm_that_is_better_for_every_seed_wins():
    low, high = [0.5, 0.51, 0.52, 0.53, 0.54], [0.9, 0.91, 0.92, 0.93, 0.94]
    verdict = league_arms.judged(entries({"latest": high, "pfsp": low, "uniform": high}))
    assert (verdict["leader"], verdict["tied"]) == ("pfsp", [])
    below, above = verdict["above_the_leader"]["latest"]["interval"]
    assert 0.3 < below <= 0.4 <= above < 0.5


def test_arms_whose_difference_may_be_nothing_are_tied():
    one, other = [0.5, 0.9, 0.6, 0.8, 0.7], [0.55, 0.85, 0.65, 0.8, 0.75]
    verdict = league_arms.judged(entries({"latest": one, "alphastar": other}))
    assert verdict["tied"]
    assert "a tie between" in league_arms.told(verdict)[-1]


def test_seeds_are_judged_by_the_tasks_own_measure():
    curve = [{"seconds": s, "env_steps": s, "nash_conv.last": 2.0 / (s + 1),
              "nash_conv.mixture": 2.0} for s in range(4)]  # fmt: skip
    entry = {"name": "leduc", "seed": 1, "curve": curve}
    (verdict,) = league.judged({"leduc-1": entry})
    assert verdict["all"]
    assert verdict["seeds"][0]["first_reached"] == {"seconds": 2, "env_steps": 2}
