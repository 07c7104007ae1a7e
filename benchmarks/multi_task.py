# SPDX-License-Identifier: Apache-2.0
"""One network for several MinAtar games beside an expert for each, with the same steps per game.

python benchmarks/multi_task.py --steps 3000000 --seed 1    with --jobs 5 on 16 cores

The IMPALA paper compares one agent for all 57 Atari games with 57 experts (59.7% against 191.8% of
a human's score, medians). Each score is the mean of 20 episodes without exploration. `normalized`
is 0 for random actions and 1 for `ppo` after 3M steps; `times_random` is the score divided by that
of random actions; both are then averaged over games. Writes benchmarks/results/multi_task.json
after each training and does not repeat what that has; `docs/generate.py` puts it on docs/scores.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import veldt
from veldt.environments.atari import reference_scores
from veldt.environments.tasks import normalised, short_name

GAMES = tuple(f"MinAtar/{name}-v1" for name in ("Asterix", "Breakout", "Freeway", "SpaceInvaders"))
TOGETHER = "together"
RESULTS = Path(__file__).resolve().parent / "results" / "multi_task.json"
_EPISODES = 20


def measure(games: tuple[str, ...], steps: int, seed: int) -> dict[str, Any]:
    """Train one network on `games`; the scores of each."""
    import measuring

    options = {"env": ",".join(games), "total_env_steps": steps * len(games), "seed": seed}
    with tempfile.TemporaryDirectory(prefix="veldt-benchmark-") as directory:
        run_dir = Path(directory) / "run"
        # A closing evaluation is cut after 20 seconds, and then has no scores by task.
        command = measuring.train_command("impala", run_dir, {**options, "evaluation_episodes": 0})
        subprocess.run(command, cwd=measuring.ROOT, check=True)
        result = json.loads((run_dir / "result.json").read_text("utf-8"))
        played = veldt.evaluate(run_dir, episodes=_EPISODES * len(games), checkpoint="last")
    means = {name: score["mean"] for name, score in played.by_task.items()}
    means = means or {short_name(games[0]): played.mean}
    scores = {}
    for game in games:
        mean = means[short_name(game)]
        times = mean / reference_scores()[game][0]
        scores[game] = {"mean": mean, "normalized": normalised(game, mean), "times_random": times}
    return {"scores": scores, "env_steps": played.env_steps, "seconds": result["wall_seconds"]}


def means_over_games(entries: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Normalised scores and multiples of random's score, of the one network and of the experts."""
    together = entries[TOGETHER]["scores"]
    experts = {game: entries[game]["scores"][game] for game in together}
    return {
        who: {
            key: statistics.fmean(score[key] for score in scores.values())
            for key in ("normalized", "times_random")
        }
        for who, scores in ((TOGETHER, together), ("experts", experts))
    }


def section() -> str:
    """The section of docs/scores.md."""
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if "means" not in found:
        return ""
    entries, means = found["entries"], found["means"]
    lines = [
        "## One network for four games",
        "",
        f"One network of `impala` after {found['steps']:,} steps of each game, and experts with as"
        f' many of one, seed {found["seed"]}. 0% is random actions, 100% `ppo` after 3M steps; "x'
        f' random" divides a score by that of random actions. {_verdict(means)}',
        "",
        "| game | one network | expert |",
        "| --- | --- | --- |",
    ]
    for game, score in entries[TOGETHER]["scores"].items():
        expert = entries[game]["scores"][game]
        cells = (f"{each['mean']:.1f}, {_short(each)}" for each in (score, expert))
        lines.append(f"| {game} | {' | '.join(cells)} |")
    lines.append(f"| mean | {_short(means[TOGETHER])} | {_short(means['experts'])} |")
    machine = found["machine"]
    how = f"`{machine['command']}`, commit {machine['commit']}."
    return "\n".join([*lines, "", how, "", ""])


def _short(score: dict[str, float]) -> str:
    return f"{score['normalized']:.0%}, {score['times_random']:.0f} x random"


def _verdict(means: dict[str, dict[str, float]]) -> str:
    one, experts = (means[who]["normalized"] for who in (TOGETHER, "experts"))
    shows = "also" if one < experts else "not"
    return (
        "In IMPALA's paper one network for 57 games of Atari has 59.7% of a human's score and its"
        f" experts 191.8% (medians): that experts are better is {shows} seen here."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3_000_000, help="of each game")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--results", type=Path, default=RESULTS.parent, help="folder")
    arguments = parser.parse_args()
    import measuring

    measuring.RESULTS = arguments.results
    path = arguments.results / RESULTS.name
    asked = {"steps": arguments.steps, "seed": arguments.seed}
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not asked.items() <= found.items():
        found = {**asked, "machine": measuring.machine(), "entries": {}}
    entries = found["entries"]

    def add(name: str, games: tuple[str, ...]) -> None:
        if name not in entries:
            entries[name] = measure(games, **asked)
            measuring.save(RESULTS.stem, found)
        print(name, entries[name], flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        wanted = {TOGETHER: GAMES, **{game: (game,) for game in GAMES}}
        list(pool.map(add, wanted.keys(), wanted.values()))
    found["means"] = means_over_games(entries)
    print(measuring.save(RESULTS.stem, found), found["means"])


if __name__ == "__main__":
    main()
