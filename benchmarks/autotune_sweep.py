# SPDX-License-Identifier: Apache-2.0
"""Does --autotune find what a sweep by hand finds? Both in one run, on CartPole-v1 with impala.

The sweep measures every setting of a grid; autotune climbs from the defaults. Then both winners are
measured again, in turn, because the best of many noisy measurements flatters itself.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace

import measuring

from veldt.backends.process.forkserver import warm_up
from veldt.options import RunOptions
from veldt.run.autotune import autotuned, trained_steps_per_second
from veldt.run.plan import make_plan

GRID = {
    "num_actors": (1, 2),
    "envs_per_actor": (32, 64, 128, 256, 512),
    "batch_trajectories": (1, 2),
}
GOAL = 0.9
ROUNDS = 4


def rate_of(options: RunOptions, setting: dict[str, int], seconds: float) -> float:
    sized = replace(
        options, num_actors=setting["num_actors"], envs_per_actor=setting["envs_per_actor"]
    )
    batch = setting["batch_trajectories"]
    queue = max(2, batch)
    plan = make_plan("impala", sized, {"batch_trajectories": batch, "queue_trajectories": queue})
    return trained_steps_per_second(plan, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    warm_up()
    options = RunOptions(env="CartPole-v1", max_seconds=60, quiet=True, autotune_seconds=seconds)
    machine = measuring.machine()
    sweep = []
    for values in itertools.product(*GRID.values()):
        setting = dict(zip(GRID, values, strict=True))
        sweep.append({**setting, "trained_steps_per_second": rate_of(options, setting, seconds)})
        print(sweep[-1], file=sys.stderr)
    swept = max(sweep, key=lambda entry: entry["trained_steps_per_second"])
    best = {name: int(swept[name]) for name in GRID}
    plan, trials = autotuned("impala", options, {})
    found = {
        "num_actors": plan.problem.num_actors,
        "envs_per_actor": plan.problem.envs_per_actor,
        "batch_trajectories": plan.config.batch_trajectories,
    }
    rates: dict[str, list[float]] = {"sweep": [], "autotune": []}
    for _ in range(ROUNDS):
        rates["sweep"].append(rate_of(options, best, seconds))
        rates["autotune"].append(rate_of(options, found, seconds))
    ratio = measuring.median(rates["autotune"]) / measuring.median(rates["sweep"])
    path = measuring.save(
        "autotune_sweep",
        {
            "machine": machine,
            "sweep": sweep,
            "best_of_sweep": best,
            "autotune": found,
            "trials": [trial.describe() for trial in trials],
            "measured_again": rates,
            "ratio": ratio,
            "goal": GOAL,
        },
    )
    print(f"sweep: {best}; autotune: {found}; autotune reaches {ratio:.2f} (goal: {GOAL} or more)")
    print(f"written to {path.relative_to(measuring.ROOT)}")


if __name__ == "__main__":
    main()
