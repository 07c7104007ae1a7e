# SPDX-License-Identifier: Apache-2.0
"""What a league costs: its steps per second beside impala's on the same game, and by pool size.

python benchmarks/league_throughput.py --rounds 3
python benchmarks/league_throughput.py --backend serial --pools --seconds 40 --name league_pools

Both have the same number of columns and of rows per update. impala plays every seat of a game with
one policy: a column for each seat, one of which decides while the others wait. Its env steps are
the moves, all of which it learns from. Those of a league are the decisions of the learning player;
its opponents move besides. So env steps are decisions that are learned from in both, a league makes
more moves, and impala fills more rows, half of which wait. The table has all three. Runs alternate,
and the median round counts. Other work on the machine slows whoever is measured just then; rates
per second of processor time depend on it less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measuring
import numpy as np

from veldt.telemetry.log_files import metric_rows

PLAYERS = 2
POOLS = (4, 64)
_SAME = {
    "num_actors": 2,
    "evaluation_episodes": 0,
    "trajectory_steps": 8,
    "envs_per_actor": 512,
    "batch_trajectories": 1,
    "gamma": 1.0,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "network_options": {"hidden_sizes": "64x64"},
    "checkpoint_options": {"env_steps": 10**9},
}
_LEAGUE = {"loss_options": {"final_entropy": "none"}, "preset": "control"}
_SELDOM = {"measure_env_steps": 10**9}
_FILL = {**_SELDOM, "freeze_env_steps": 10_000, "self_play_share": 0.0}


def contestants(game: str, backend: str = "process") -> dict[str, tuple[str, dict[str, Any]]]:
    """Architecture and options by name. The pool's share of games is the largest there can be: all
    of them; it is filled soon, and goes on changing."""
    shared = {**_SAME, "env": game, "backend": backend}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "impala": ("impala", shared),
        "league": ("league", {**shared, **_LEAGUE, "league_options": _SELDOM}),
    }
    for size in POOLS:
        league = {**_FILL, "max_frozen": size}
        found[f"league, pool of {size}"] = (
            "league", {**shared, **_LEAGUE, "matchmaking": "uniform", "league_options": league}
        )  # fmt: skip
    return found


def measure(architecture: str, options: dict[str, Any], seconds: float) -> dict[str, float]:
    """Rates over the later half of a run, when pools are full."""
    with tempfile.TemporaryDirectory(prefix="veldt-league-") as folder:
        run_dir = Path(folder) / "run"
        command = measuring.train_command(
            architecture, run_dir, {**options, "max_seconds": seconds}
        )
        subprocess.run(command, cwd=measuring.ROOT, check=True, timeout=seconds + 120)
        rows = metric_rows(run_dir)
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    began = rows[-1]["time"] - seconds / 2
    later = [row for row in rows if row["time"] >= began]
    passed = later[-1]["time"] - later[0]["time"]
    steps = (later[-1]["env_steps"] - later[0]["env_steps"]) / passed
    is_league = architecture == "league"
    cores = np.mean([row["system/run_cores"] for row in later[1:] if "system/run_cores" in row])
    return {
        "env_steps_per_second": steps,
        "env_steps_per_core_second": steps / float(cores),
        "moves_per_second": steps * PLAYERS if is_league else steps,
        "rows_per_second": steps if is_league else steps * PLAYERS,
        "frozen": result["league"]["frozen"] if is_league else 0,
    }


def ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Medians over rounds of what is asked for: each round's own ratio, so that a slow minute of
    the machine counts for both."""
    small, large = (f"league, pool of {size}" for size in POOLS)

    def ratio(one: str, other: str, name: str) -> float:
        return measuring.median([entry[one][name] / entry[other][name] for entry in rounds])

    found = {}
    rates = ("env_steps_per_second", "env_steps_per_core_second")
    if "impala" in rounds[0]:
        for name in (*rates, "moves_per_second", "rows_per_second"):
            found[f"league_to_impala_by_{name}"] = ratio("league", "impala", name)
    for name in rates:
        found[f"pool_of_64_to_pool_of_4_by_{name}"] = ratio(large, small, name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=["veldt:leduc", "veldt:connect_four"])
    parser.add_argument("--backend", default="process", choices=("serial", "process"))
    parser.add_argument("--pools", action="store_true", help="compare sizes of the pool alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--name", default="league_throughput", help="of the file with results")
    arguments = parser.parse_args()
    payload: dict[str, Any] = {
        "machine": measuring.machine(),
        "settings": {**_SAME, "backend": arguments.backend, "seconds": arguments.seconds},
        "games": {},
    }
    for game in arguments.games:
        rounds = []
        for _ in range(arguments.rounds):
            entry = {}
            for name, (architecture, options) in contestants(game, arguments.backend).items():
                if arguments.pools and "pool" not in name:
                    continue
                entry[name] = measure(architecture, options, arguments.seconds)
                print(game, name, {k: round(v) for k, v in entry[name].items()}, flush=True)
            rounds.append(entry)
        payload["games"][game] = {"rounds": rounds, "ratios": ratios(rounds)}
        measuring.save(arguments.name, payload)
        print(game, {k: round(v, 3) for k, v in payload["games"][game]["ratios"].items()})


if __name__ == "__main__":
    main()
