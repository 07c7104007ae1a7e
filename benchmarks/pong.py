# SPDX-License-Identifier: Apache-2.0
"""Pong without sticky actions on two cores, with defaults: the curves in docs/scores.md.

veldt train ppo --env ALE/Pong-v5 --env-options repeat_action_probability=0.0 --target-return 18
python benchmarks/pong.py RUN_DIR...    appends those runs to the results and draws all of them
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from veldt.compare.records import cpu_model, versions
from veldt.telemetry.log_files import metric_rows

_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "benchmarks/results/pong.jsonl"
FIGURE = _ROOT / "docs/images/pong.png"
_GAP_SECONDS = 30.0
_LEVEL = -10.0


def recorded(run_dir: Path) -> dict[str, Any]:
    """The run's seed and result, and a point of its curve for every 10 seconds: seconds of wall
    and of cores, env steps, mean return."""
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    rows = metric_rows(run_dir)
    points, wall, cores = {}, 0.0, 0.0
    for before, row in pairwise(rows):
        passed = row["time"] - before["time"]
        if passed < _GAP_SECONDS:  # longer ones are between a run and its continuation
            wall, cores = wall + passed, cores + passed * (row["system/run_cores"] or 0.0)
        points[wall // 10] = round(wall), round(cores), row["env_steps"], row["return/mean_100"]
    names = (
        "seconds_to_target",
        "evaluation_return",
        "evaluation_env_steps",
        "mean_return_100",
        "env_steps",
        "wall_seconds",
        "chosen",
    )
    return {
        "system": config["architecture"],
        "seed": config["options"]["seed"],
        "target": config["options"]["target_return"],
        **{name: result[name] for name in names},
        "cpu": cpu_model(),
        "versions": versions(("torch", "ale-py")),
        "curve": list(points.values()),
    }


def section() -> str:
    """The section of docs/scores.md."""
    lines = [
        "## Pong on two cores",
        "",
        "Pong without sticky actions and without a GPU (`veldt train ppo --env ALE/Pong-v5"
        " --env-options repeat_action_probability=0.0 --target-return 18`; drawn by `python"
        " benchmarks/pong.py`). Other work ran beside these runs, which had the cores below"
        " instead of two. With a target, minutes and steps are those at which 20 fresh episodes"
        " had it; without one, those at which the mean of 100 training episodes, which is far"
        " behind the policy, passed -10. The preset `atari_on_cpu` was chosen with seed 10. `pqn`"
        " ran with the Nature network; the others have the smaller one that the preset has since."
        " `ppo` ran with `OMP_NUM_THREADS=1`: a second thread of its learner gains only where a"
        " core is free.",
        "",
        "| system | seed | target | minutes | env steps | cores | steps/s | evaluation |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in _runs():
        wall, cores = run["curve"][-1][:2]
        above = [point for point in run["curve"] if point[3] is not None and point[3] > _LEVEL]
        seconds, _, steps, _ = above[0] if above else run["curve"][-1]
        if run["seconds_to_target"]:
            seconds, steps = run["seconds_to_target"], run["evaluation_env_steps"]
        target = "-10 in training" if run["target"] is None else f"{run['target']:g}"
        rate = run["env_steps"] / run["wall_seconds"]
        lines.append(
            f"| `{run['system']}` | {run['seed']} | {target} | {seconds / 60:.0f} | {steps:,}"
            f" | {cores / wall:.1f} | {rate:,.0f} | {run['evaluation_return']:.1f} |"
        )
    return "\n".join([*lines, "", f"![Pong on two cores](images/{FIGURE.name})", "", ""])


def _runs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def draw(runs: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), sharey=True, constrained_layout=True)
    for run in runs:
        _, cores, steps, returns = zip(*run["curve"], strict=True)
        returns = [float("nan") if value is None else value for value in returns]
        axes[0].plot(
            [each / 60 for each in cores], returns, label=f"{run['system']}, seed {run['seed']}"
        )
        axes[1].plot([each / 1000 for each in steps], returns)
    axes[0].set(xlabel="core-minutes", ylabel="mean return of 100 episodes")
    axes[1].set(xlabel="thousand env steps")
    axes[0].legend(fontsize=7)
    for axis in axes:
        axis.axhline(_LEVEL, color="grey", linewidth=0.8, linestyle="--")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=80)


def main() -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        for run_dir in sys.argv[1:]:
            print(json.dumps(recorded(Path(run_dir))), file=file)
    draw(_runs())


if __name__ == "__main__":
    main()
