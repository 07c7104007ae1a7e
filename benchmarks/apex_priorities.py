# SPDX-License-Identifier: Apache-2.0
"""Ape-X with and without priorities computed by the actors.

Without them new data enters the replay at the largest priority, and a learner whose actors are fast
trains on little else: the age of what it samples shows it. Serial and deterministic; writes
apex_priorities.json and .png to benchmarks/results.
"""

from __future__ import annotations

import argparse

from learning_curves import curve, draw, mean_curve, over_seeds
from measuring import machine, save

from veldt.options import RunOptions

_AGE, _PRIORITY = "replay.mean_age_inserts", "replay.sampled_priority"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs-per-actor", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    about = machine()
    step = arguments.updates // arguments.points
    points = range(step, arguments.updates + 1, step)
    curves = {}
    for name, by_actors in (("priorities by the actors", True), ("largest priority", False)):

        def train(seed: int, by_actors: bool = by_actors) -> list:
            options = RunOptions(
                env=arguments.env,
                backend="serial",
                device="cpu",
                seed=seed,
                num_actors=1,
                envs_per_actor=arguments.envs_per_actor,
            )
            own = {
                "actor_priorities": by_actors,
                "batch_size": arguments.batch_size,
                "env_steps_per_update": float(arguments.envs_per_actor),
            }
            return curve("apex", options, own, points, gauges=(_AGE, _PRIORITY))

        curves[name] = over_seeds(name, arguments.seeds, train)
    for name, runs in curves.items():
        returns, ages = (mean_curve(runs, key) for key in ("evaluation_return", _AGE))
        print(f"{name}: {returns[-1]:.1f} at the end, samples {ages[-1]:,.0f} inserts old")
    document = {"settings": vars(arguments), "machine": about, "curves": curves}
    path = save("apex_priorities", document).with_suffix(".png")
    panels = [
        ("evaluation_return", f"return on {arguments.env}"),
        (_AGE, "mean age of samples, in inserts"),
    ]
    draw(curves, panels, path)


if __name__ == "__main__":
    main()
