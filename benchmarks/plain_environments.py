# SPDX-License-Identifier: Apache-2.0
"""Trained steps/s where Veldt, as its peers, steps single CartPoles written in Python.

Gymnasium has a vectorised CartPole, which steps hundreds of them in one call; no peer uses it.
With `--wrappers vectorization=in_process` Veldt steps one Python environment after the other, as
they do.
"""

from __future__ import annotations

import json
import statistics

import measuring

SYSTEMS = {"impala": 256, "a3c": 128}
"""Environments of an actor: 256 in all, as in the fastest setting of a peer."""
RUNS, SECONDS = 3, 9


def main() -> None:
    machine, rates = measuring.machine(), {}
    for name, width in SYSTEMS.items():
        rates[name] = [
            measuring.train(
                name,
                60,
                env="CartPole-v1",
                wrappers={"vectorization": "in_process"},
                envs_per_actor=width,
                num_actors=256 // width,
                max_seconds=SECONDS,
                evaluation_episodes=0,
                seed=seed,
            ).trained_steps_per_second
            for seed in range(RUNS)
        ]
        print(name, rates[name], flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    document = {"machine": machine, "rates": rates, "medians": medians}
    path = measuring.RESULTS / "plain_environments.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
