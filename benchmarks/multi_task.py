# SPDX-License-Identifier: Apache-2.0
"""One network for several MinAtar games beside an expert for each, with the same steps per game.

python benchmarks/multi_task.py --steps 3000000 --seed 1

The IMPALA paper compares one agent for all 57 Atari games with 57 experts (59.7% against 191.8% of
a human's score, medians). Scores here are normalised by random actions (0) and `ppo` after 3M steps
(1). Writes benchmarks/results/multi_task.json.
"""

from __future__ import annotations

import argparse
from typing import Any

import measuring

from veldt.environments.tasks import normalised, short_name

GAMES = tuple(f"MinAtar/{name}-v1" for name in ("Asterix", "Breakout", "Freeway", "SpaceInvaders"))
_LIMIT_SECONDS = 3_000.0


def measure(games: tuple[str, ...], steps: int, seed: int) -> dict[str, Any]:
    """Train one network on `games`; the mean and normalised score of each."""
    result = measuring.train(
        "impala", _LIMIT_SECONDS, env=",".join(games), total_env_steps=steps * len(games), seed=seed
    ).result
    scores = result["evaluation_by_task"]
    if not scores:
        mean = result["evaluation_return"]
        scores = {short_name(games[0]): {"mean": mean, "normalized": normalised(games[0], mean)}}
    return {"scores": scores, "env_steps": result["env_steps"], "seconds": result["wall_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3_000_000, help="of each game")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    entries: dict[str, Any] = {"together": measure(GAMES, arguments.steps, arguments.seed)}
    for game in GAMES:
        entries[short_name(game)] = measure((game,), arguments.steps, arguments.seed)
        print(game, entries[short_name(game)], flush=True)
    payload = {"machine": measuring.machine(), "steps": arguments.steps, "seed": arguments.seed}
    print(measuring.save("multi_task", {**payload, "entries": entries}))


if __name__ == "__main__":
    main()
