# SPDX-License-Identifier: Apache-2.0
"""Trained steps per second on pixels with convolutions in float32 and in bfloat16, in turns.

Both are the same command but for the network option image_precision, so the ratio of a round
is what rounding gains on this machine. Where its cores do not multiply bfloat16
both compute in float32.

python benchmarks/image_precision.py
"""

from __future__ import annotations

import argparse
from typing import Any

import measuring

from veldt.resources import multiplies_bfloat16


def measure(architecture: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one architecture, and the median of their ratios."""
    rates: dict[str, list[float]] = {"float32": [], "auto": []}
    for seed in range(arguments.rounds):
        for precision, found in rates.items():
            run = measuring.train(
                architecture,
                arguments.seconds + 120.0,
                env=arguments.env,
                max_seconds=arguments.seconds,
                seed=seed,
                evaluation_episodes=0,
                network_options={"image_precision": precision},
            )
            found.append(run.trained_steps_per_second)
    ratios = [new / old for old, new in zip(*rates.values(), strict=True)]
    return {"architecture": architecture, **rates, "ratio": measuring.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--architectures", nargs="+", default=["impala", "ppo", "sample_factory"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    machine = {**measuring.machine(), "multiplies_bfloat16": multiplies_bfloat16()}
    entries = []
    for architecture in arguments.architectures:
        entries.append(measure(architecture, arguments))
        measuring.save("image_precision", {"machine": machine, "runs": entries})
    rows = [
        (
            e["architecture"],
            *(measuring.median(e[name]) for name in ("float32", "auto")),
            e["ratio"],
        )
        for e in entries
    ]
    measuring.print_table(("trained steps/s", "float32", "auto", "ratio"), rows)


if __name__ == "__main__":
    main()
