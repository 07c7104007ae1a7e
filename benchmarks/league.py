# SPDX-License-Identifier: Apache-2.0
"""Leagues on the shipped games, against exact measures of strength.

python benchmarks/league.py games --seeds 1 2 3 4 5
python benchmarks/league.py games --jobs 8 --cores 2 --max-seconds 500 --deadline 540
python benchmarks/league.py arms

`games` runs each game of TASKS (one-seed games once) until its env steps or --max-seconds are over.
`arms` compares four rules of match-making on Leduc: the same entropies, seeds and env steps for
each. Results are written while runs go on, and runs that have finished are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import league_arms
import measuring
from league_jobs import Job, Lanes, run_here

_ROCK_PAPER_SCISSORS = {
    "env": "veldt:rock_paper_scissors",
    "backend": "serial",
    "num_actors": 1,
    "total_env_steps": 150_000,
    "envs_per_actor": 32,
    "trajectory_steps": 4,
    "batch_trajectories": 1,
    "league_options": {
        "freeze_env_steps": 2_500,
        "measure_env_steps": 2_500,
        "self_play_share": 0.0,
        "max_frozen": 64,
    },
    "network_options": {"hidden_sizes": "16"},
    "learning_rate": 1e-2,
    "optimizer_options": {"decay_learning_rate": False},
    "entropy_coefficient": 0.2,
    "loss_options": {"final_entropy": "none", "normalize_returns": False},
}
_SHARED = {"backend": "process", "evaluation_episodes": 0}


@dataclass(frozen=True)
class Task:
    """A league on a game, and what it should reach."""

    options: dict[str, Any]
    target: str
    reached: Callable[[dict[str, float]], bool]
    """Whether these measures are good enough."""
    every_seed: bool = False


def _nash_conv_below(bound: float) -> Callable[[dict[str, float]], bool]:
    return lambda found: min(found["nash_conv.last"], found["nash_conv.mixture"]) < bound


TASKS = {
    "leduc": Task(
        {"env": "veldt:leduc", "total_env_steps": 6_000_000, "league_options": {"max_frozen": 16}},
        "NashConv below 0.8, of the last model or of the mixture",
        _nash_conv_below(0.8),
        every_seed=True,
    ),
    "connect_four": Task(
        {
            "env": "veldt:connect_four",
            "env_options": "opening_moves=2",
            "network": "benchmarks.connect_four:network",
            "total_env_steps": 12_000_000,
            "gamma": 0.99,
            "trace_lambda": 0.95,
            "trajectory_steps": 16,
            "ppo_options": {"normalize_advantages": True},
            "entropy_coefficient": 0.03,
            "loss_options": {"final_entropy": 0.005},
            "league_options": {
                "opponent_noise": 0.05,
                "self_play_share": 0.25,
                "freeze_env_steps": 500_000,
                "max_frozen": 1,
                "measure_env_steps": 500_000,
            },
            "matchmaking": "uniform",
            "scripted_opponents": (
                "benchmarks.connect_four:alpha_beta_3,benchmarks.connect_four:alpha_beta_4"
            ),
        },
        "at least 90% wins against alpha-beta of depth 4",
        lambda found: found["alpha_beta.win_rate"] >= 0.9,
    ),
    "tic_tac_toe": Task(
        {
            "env": "veldt:tic_tac_toe",
            # Chance opens games, so that every line is met; entropy keeps other answers alive.
            "env_options": "opening_moves=4",
            "total_env_steps": 2_000_000,
            "network_options": {"hidden_sizes": "128x128"},
            "entropy_coefficient": 0.2,
            "loss_options": {"final_entropy": 0.02},
            "league_options": {"opponent_noise": 0.1, "measure_env_steps": 100_000},
            "scripted_opponents": "benchmarks.tic_tac_toe:minimax",
        },
        "no lost line from either seat, whatever the opponent does",
        lambda found: found["minimax.losses_first"] + found["minimax.losses_second"] == 0,
    ),
    "rock_paper_scissors_latest": Task(
        {**_ROCK_PAPER_SCISSORS, "matchmaking": "latest"},
        "cycles: the last model is 0.3 or more away from a third each",
        lambda found: found["distance.last"] > 0.3,
    ),
    "rock_paper_scissors_league": Task(
        {**_ROCK_PAPER_SCISSORS, "matchmaking": "pfsp"},
        "the mixture is within 0.05 of a third each",
        lambda found: found["distance.mixture"] < 0.05,
    ),
    "kuhn": Task(
        {
            "env": "veldt:kuhn",
            "total_env_steps": 6_000_000,
            # Many small updates: with fewer, larger ones the last model jumped about.
            "envs_per_actor": 256,
            "trajectory_steps": 4,
            "batch_trajectories": 1,
            "learning_rate": 1e-3,
            "optimizer_options": {"adam_beta1": 0.0},
            "loss_options": {"final_entropy": 0.03},
            "league_options": {"freeze_env_steps": 30_000, "max_frozen": 50},
        },
        "NashConv below 0.05, of the last model or of the mixture",
        _nash_conv_below(0.05),
        every_seed=True,
    ),
}


@dataclass
class Results:
    """A file of results that grows."""

    name: str
    folder: Path
    settings: dict[str, Any]
    judge: Callable[[dict[str, dict[str, Any]]], Any]
    machine: dict[str, Any] = field(default_factory=measuring.machine)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def known(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        payload = json.loads(self.path.read_text(encoding="utf-8"))
        entries = payload["entries"]
        for entry in entries:
            entry.setdefault("machine", payload["machine"])
        return {f"{entry['name']}-{entry['seed']}": entry for entry in entries}

    def save(self, entries: dict[str, dict[str, Any]]) -> None:
        listed = [entries[key] for key in sorted(entries)]
        for entry in listed:
            entry.setdefault("machine", self.machine)  # others may be of an earlier call
        payload = {
            "machine": self.machine,
            "settings": self.settings,
            "verdicts": self.judge(entries),
            "entries": listed,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(measuring.plain(payload), indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def judged(entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """For each task: what each seed came to, by its last model or the best one that it kept, and
    when it first had what was asked for."""
    verdicts = []
    for name, task in TASKS.items():
        own = [entry for entry in entries.values() if entry["name"] == name and entry["curve"]]
        seeds = []
        for entry in sorted(own, key=lambda entry: entry["seed"]):
            last = entry.get("final") or entry["curve"][-1]
            good = [row for row in entry["curve"] if task.reached(row)]
            numbers = {k: v for k, v in last.items() if k not in ("seconds", "env_steps")}
            first = {k: good[0][k] for k in ("seconds", "env_steps")} if good else None
            best = entry.get("best")
            reached = task.reached(last) or (best is not None and task.reached(best["measures"]))
            seeds.append(
                {"seed": entry["seed"], "reached": reached, **numbers, "best": best,
                 "first_reached": first}
            )  # fmt: skip
        if seeds:
            all_of_them = all(seed["reached"] for seed in seeds)
            verdicts.append({"name": name, "target": task.target, "all": all_of_them,
                             "seeds": seeds})  # fmt: skip
    return verdicts


def play_games(arguments: argparse.Namespace) -> None:
    jobs = []
    for name in arguments.tasks:
        task = TASKS[name]
        seeds = arguments.seeds if task.every_seed else arguments.seeds[:1]
        jobs += [Job(name, seed, {**_SHARED, **task.options}) for seed in seeds]
    results = _results(arguments, judged)
    _lanes(arguments, jobs, results).run()
    for verdict in results.judge(results.known()):
        word = "reached by all seeds" if verdict["all"] else "NOT reached by all seeds"
        print(f"{verdict['name']}: {verdict['target']}: {word}")
    print(results.path)


def compare_arms(arguments: argparse.Namespace) -> None:
    jobs = [
        Job(league_arms.job_name(arm, entropy), seed, {**_SHARED, **options})
        for seed in arguments.seeds
        for entropy in arguments.entropies
        for arm, options in league_arms.arms(entropy, arguments.env_steps).items()
    ]
    results = _results(arguments, league_arms.judged)
    run_here(jobs, arguments.deadline, results.save, results.known())
    for line in league_arms.told(results.judge(results.known())):
        print(line)
    print(results.path)


def _results(arguments: argparse.Namespace, judge: Callable[..., Any]) -> Results:
    settings = {name: value for name, value in vars(arguments).items() if name != "act"}
    return Results(arguments.name, Path(settings.pop("results")), settings, judge)


def _lanes(arguments: argparse.Namespace, jobs: list[Job], results: Results) -> Lanes:
    return Lanes(
        jobs,
        arguments.jobs,
        arguments.cores,
        arguments.max_seconds,
        arguments.deadline,
        results.save,
        results.known(),
    )


def _shared_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--cores", type=int, default=2, help="of each run, its own")
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of each run")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds until all must end")
    parser.add_argument("--results", default=str(measuring.RESULTS), help="folder")
    parser.add_argument("--name", default=name, help="of the file with results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_subparsers(required=True)
    games = ways.add_parser("games")
    games.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    _shared_options(games, "league")
    games.set_defaults(act=play_games)
    arms = ways.add_parser("arms")
    arms.add_argument("--entropies", nargs="+", type=float, default=list(league_arms.ENTROPIES))
    arms.add_argument("--env-steps", type=int, default=league_arms.ENV_STEPS)
    _shared_options(arms, "league_arms")
    arms.set_defaults(act=compare_arms)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
