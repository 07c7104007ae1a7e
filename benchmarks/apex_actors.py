# SPDX-License-Identifier: Apache-2.0
"""Ape-X: score against the number of actors, 1, 2 and 4, at a fixed learner rate.

Every actor adds the same number of environment steps for each update of the learner, so more actors
mean more and more varied data for the same amount of learning. Serial and deterministic; writes
apex_actors.json and .png to benchmarks/results.
"""

from __future__ import annotations

import argparse

from learning_curves import curve, draw, mean_curve, over_seeds
from measuring import machine, save

from veldt.options import RunOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--envs-per-actor", type=int, default=4)
    parser.add_argument("--updates", type=int, default=3_000)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    about = machine()
    step = arguments.updates // arguments.points
    points = range(step, arguments.updates + 1, step)
    curves = {}
    for actors in arguments.actors:
        steps_per_update = float(actors * arguments.envs_per_actor)
        name = f"{actors} actor{'s' * (actors > 1)}, {steps_per_update:.0f} env steps per update"

        def train(seed: int, actors: int = actors, ratio: float = steps_per_update) -> list:
            options = RunOptions(
                env=arguments.env,
                backend="serial",
                device="cpu",
                seed=seed,
                num_actors=actors,
                envs_per_actor=arguments.envs_per_actor,
            )
            return curve("apex", options, {"env_steps_per_update": ratio}, points)

        curves[name] = over_seeds(name, arguments.seeds, train)
    for name, runs in curves.items():
        returns = mean_curve(runs, "evaluation_return")
        print(f"{name}: {returns[-1]:.1f} at the end, {sum(returns) / len(returns):.1f} on the way")
    document = {"settings": vars(arguments), "machine": about, "curves": curves}
    path = save("apex_actors", document).with_suffix(".png")
    draw(curves, [("evaluation_return", f"return on {arguments.env}")], path)


if __name__ == "__main__":
    main()
