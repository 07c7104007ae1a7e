# SPDX-License-Identifier: Apache-2.0
"""Ten systems side by side: what the page says follows from the rows."""

import json

from benchmarks import lineage_report as report

SCORES = {"dqn": (4.0, 5.0, 6.0), "gorila": (5.0, 4.0, 6.5), "a3c": (14.0, 15.0, 16.0)}


def test_an_order_is_undecided_where_the_interval_contains_zero(tmp_path):
    with open(tmp_path / "lineage.jsonl", "w") as file:
        for system, scores in SCORES.items():
            last = 2_000 if system == "a3c" else 20
            for seed, score in enumerate(scores):
                curve = [(1.0, 0, None), (2.0, 10, 0.5), (3.0, last, score)]
                run = {"task": "CartPole-v1", "system": system, "seed": seed, "max_seconds": 3.0}
                run |= {"evaluation_return": score, "curve": curve}
                run["evaluation_env_steps"] = last
                run["machine"] = {"cpu": "a", "command": "b"}
                run["chosen"] = {"preset": "grids" if system == "a3c" else "control"}
                print(json.dumps(run), file=file)
            print(json.dumps({**run, "seed": 3, "error": "exit code 1"}), file=file)
    text = report.section(tmp_path / "lineage.jsonl")
    assert "| a3c | 15.0 ± 2.5; 2k |" in text
    assert "| dqn | 5.00 ± 2.48; 0k |" in text
    assert "on Asterix `a3c` used one that was." in text
    [against_dqn] = [line for line in text.splitlines() if line.startswith("- `gorila`, `dqn`")]
    assert against_dqn.endswith(": undecided on CartPole.")
    assert "(in the median of 57 games): above on CartPole (9.83 ± 2.59)." in text
