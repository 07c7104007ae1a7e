# SPDX-License-Identifier: Apache-2.0
"""Makes the policies of `veldt zoo`: trains, keeps the best weights, plays fresh episodes.

python -m benchmarks.zoo                     all; a run that has finished is not trained again
python -m benchmarks.zoo cart_pole hopper
python -m benchmarks.zoo pong --from-run DIR     of a run of the entry's command on another machine

Runs are in build/zoo, entries in veldt_zoo/NAME: run directories with config.json, result.json, a
thinned metrics.jsonl, one checkpoint of nothing but weights, and card.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import veldt
from benchmarks.tic_tac_toe import minimax
from veldt.backends.checkpoint_parts import WEIGHTS
from veldt.checkpoints.store import CheckpointStore
from veldt.games import GAMES, make_game
from veldt.games.interface import actions_of
from veldt.games.solvers import PolicyFunction, tic_tac_toe_losses
from veldt.league.strength import MEASURED, policy_of
from veldt.run.best import BEST
from veldt.run.checkpoints import weights_in
from veldt.run.loading import LAST, find_checkpoint, restored
from veldt.telemetry.log_files import EVALUATION, EVALUATION_ENV_STEPS, METRICS_FILE, metric_rows
from veldt.telemetry.result import RunResult, dumps
from veldt.zoo import CARD, ZOO

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "build" / "zoo"
TRAINED = {
    "acrobot": "ppo --env Acrobot-v1 --total-env-steps 400000",
    "cart_pole": "ppo --env CartPole-v1 --total-env-steps 200000",
    "hopper": "ppo --env Hopper-v5 --total-env-steps 700000",
    "lunar_lander": "ppo --env LunarLander-v3 --total-env-steps 1000000",
    # What the preset `grids` of pqn says since.
    "minatar_breakout": "pqn --env MinAtar/Breakout-v1 --total-env-steps 3000000",
    "pendulum": "ppo --env Pendulum-v1 --total-env-steps 500000",
    "pong": "ppo --env ALE/Pong-v5 --env-options repeat_action_probability=0.0 --target-return 18",
    "tic_tac_toe": "league --env veldt:tic_tac_toe --env-options opening_moves=4"
    " --total-env-steps 2000000",
    "connect_four": "league --env veldt:connect_four --env-options opening_moves=2"
    " --network-options hidden_sizes=256x256,activation=relu --gamma 0.99 --trace-lambda 0.95"
    " --trajectory-steps 16 --ppo-options normalize_advantages=true --entropy-coefficient 0.03"
    " --loss-options final_entropy=0.005 --matchmaking uniform --league-options"
    " opponent_noise=0.05,self_play_share=0.25,freeze_env_steps=500000,max_frozen=1"
    " --scripted-opponents "
    + ",".join(f"benchmarks.connect_four:alpha_beta_{depth}" for depth in (1, 2, 3, 4))
    + " --total-env-steps 10000000",
}
SEED, EVALUATION_SEED = 1, 1_000
NUM_EPISODES, NUM_GAMES = 100, 1_000
_CURVE = ("return/mean_100", EVALUATION, EVALUATION_ENV_STEPS)
_POINTS = 20


def command(name: str) -> str:
    """The command that trains an entry."""
    words, evaluated = TRAINED[name], ""
    if "--total-env-steps" in words and not words.startswith("league"):
        evaluated = f" --evaluate-every {int(words.split()[-1]) // _POINTS}"
    return f"veldt train {words}{evaluated} --seed {SEED}"


def commit() -> str:
    """The commit of this tree."""
    git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.check_output(git, cwd=ROOT, text=True).strip()


def trained(name: str) -> Path:
    """The directory of the entry's run, which is trained if there is none."""
    run_dir = RUNS / name
    if not (run_dir / "result.json").exists():
        shutil.rmtree(run_dir, ignore_errors=True)
        RUNS.mkdir(parents=True, exist_ok=True)
        (RUNS / f"{name}.commit").write_text(commit())
        words = [*shlex.split(command(name))[1:], "--run-dir", str(run_dir)]
        subprocess.run([sys.executable, "-m", "veldt", *words], cwd=ROOT, check=True)
    return run_dir


def trim(run_dir: Path, entry: Path, command: str) -> None:
    """Make the entry of a run: what is needed to load its best weights and to draw its curve."""
    shutil.rmtree(entry, ignore_errors=True)
    entry.mkdir()
    config = json.loads((run_dir / "config.json").read_text())
    config["command"], config["options"]["run_dir"] = command, None
    if config["options"]["env"] in GAMES:
        config["options"]["env_options"] = {}  # games begin with an empty board
        config["config"]["scripted_opponents"] = []  # which are in this folder
    (entry / "config.json").write_text(dumps(config) + "\n")
    result = RunResult.load(run_dir / "result.json")
    unneeded: dict[str, Any] = {"run_dir": "", "stage_shares": {}, "bottleneck": "", "league": None}
    replace(result, command=command, **unneeded).save(entry / "result.json")
    with (entry / METRICS_FILE).open("w") as file:
        file.writelines(dumps(row) + "\n" for row in _curve(run_dir, result.wall_seconds))
    is_measured = config["options"]["env"] in MEASURED or config["options"]["env"] not in GAMES
    found = find_checkpoint(run_dir, BEST if is_measured else LAST)
    weights, env_steps = weights_in(found), int(found.meta["env_steps"])
    meta = {"complete": False, "version": weights.version, "env_steps": env_steps}
    store = CheckpointStore(entry / "checkpoints")
    store.save(env_steps, {WEIGHTS: {"vector": weights.vector}}, meta)


def _curve(run_dir: Path, wall_seconds: float) -> Iterator[dict[str, Any]]:
    """Lines with an evaluation, or else some of all, and the last; times count from the start."""
    rows = metric_rows(run_dir)
    began = rows[-1]["time"] - wall_seconds
    chosen = [row for row in rows if EVALUATION in row]
    if len(chosen) < 2:
        chosen = rows[:: -(-len(rows) // _POINTS)]
    for row in [*(row for row in chosen if row is not rows[-1]), rows[-1]]:
        values = {key: row[key] for key in _CURVE if row.get(key) is not None}
        shown = {key: float(f"{value:.6g}") for key, value in values.items()}
        yield {"time": round(row["time"] - began, 2), "env_steps": row["env_steps"], **shown}


def evaluated(entry: Path) -> dict[str, Any]:
    """Mean return of fresh episodes with a 95% interval; of a game, shares of results."""
    found = restored(entry)
    game = found.plan.problem.environment.name
    if not found.plan.problem.environment.is_game:
        returns = np.array(veldt.evaluate(entry, NUM_EPISODES, EVALUATION_SEED).returns)
        mean, half = returns.mean(), 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
        low, high = mean - half, mean + half
        text = f"return {mean:,.1f} [{low:,.1f} to {high:,.1f}] over {len(returns)} episodes"
        numbers = {"mean": mean, "low": low, "high": high, "episodes": len(returns)}
        return {"text": text, **numbers}
    policy = policy_of(found.plan.topology.network, found.weights.vector)
    shares: dict[str, Any] = {"random play": against(game, policy, _uniform)}
    if game == "veldt:tic_tac_toe":
        shares["perfect play"] = against(game, policy, minimax)
    else:
        from benchmarks.connect_four import play_against_alpha_beta  # compiles it

        score = vars(play_against_alpha_beta(policy, NUM_GAMES, 4, EVALUATION_SEED))
        shares["alpha-beta of depth 4"] = {
            name: sum(count) / NUM_GAMES for name, count in score.items()
        }
    texts = [
        f"{share['wins']:.1%} won and {share['losses']:.1%} lost against {opponent}"
        for opponent, share in shares.items()
    ]
    if game == "veldt:tic_tac_toe":
        shares["lost_lines"] = sum(tic_tac_toe_losses(policy, seat) for seat in (0, 1))
    return {"text": ", ".join(texts), "games": NUM_GAMES, **shares}


def _uniform(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return legal / legal.sum(axis=1, keepdims=True)


def against(name: str, policy: PolicyFunction, opponent: Any) -> dict[str, float]:
    """Shares of wins, draws and losses of a policy, which has the first seat in every second game
    and plays its likeliest move."""
    game, random = make_game(name, NUM_GAMES, 0), np.random.default_rng(EVALUATION_SEED)
    game.reset()
    seats, totals = np.arange(NUM_GAMES) % 2, np.zeros(NUM_GAMES)
    while len(rows := np.flatnonzero(~game.over)):
        turn = game.turn[rows]
        seen, legal = game.observe(turn, rows)["observation"], game.legal(turn, rows)
        chances = opponent(seen, legal, random)
        drawn = (chances.cumsum(axis=1) > random.random((len(rows), 1))).argmax(axis=1)
        own = np.where(legal, policy(seen, legal), -1.0).argmax(axis=1)
        moves = np.zeros(NUM_GAMES, np.int64)
        moves[rows] = np.where(turn == seats[rows], own, drawn)
        step = game.step(actions_of(game.turn, moves, 2), ~game.over)
        totals += step.rewards[np.arange(NUM_GAMES), seats]
    results = {"wins": totals > 0, "draws": totals == 0, "losses": totals < 0}
    return {result: float(games.mean()) for result, games in results.items()}


def make(name: str, run_dir: Path | None = None) -> None:
    """Train, trim and evaluate one entry; a run from elsewhere was made at this commit."""
    entry, recorded = ZOO / name, RUNS / f"{name}.commit"
    trim(run_dir or trained(name), entry, command(name))
    found, score = restored(entry), evaluated(entry)
    card = {
        "name": name,
        "architecture": found.plan.architecture,
        "env": found.plan.problem.environment.name,
        "env_steps": found.env_steps,
        "seed": found.plan.options.seed,
        "command": command(name),
        "commit": commit() if run_dir else recorded.read_text(),
        "evaluation_seed": EVALUATION_SEED,
        "score": score,
    }
    (entry / CARD).write_text(json.dumps(json.loads(dumps(card)), indent=1) + "\n")
    size = sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
    print(f"{name}: {score['text']}; {size:,} bytes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(TRAINED), metavar="NAME")
    parser.add_argument("--from-run", type=Path)
    given = parser.parse_args()
    for name in given.names:
        make(name, given.from_run)
