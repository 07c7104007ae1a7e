# SPDX-License-Identifier: Apache-2.0
"""Facts about the lineage that decide no claim, for docs/evolution.md.

python benchmarks/lineage_facts.py    writes benchmarks/results/lineage_facts.json

Messages, bytes and ages are counted in serial runs and memory in topologies, so they do not depend
on the machine; GA3C's annealing is a run of a minute with environments that sleep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.claims.ga3c_controller import ControllerFinds
from benchmarks.claims.training import SerialRun, serial_options
from veldt.backends.shared_memory.fabric import bytes_of
from veldt.options import RunOptions
from veldt.run.plan import make_plan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/lineage_facts.json"
FIGURE = ROOT / "docs/images/ga3c_tuning.png"
PERIODS = (1, 2, 4, 8, 16)


def gorila_of_the_papers_size(env_steps: float = 16_000) -> dict[str, float]:
    """31 shards and 100 bundles: every message of a gradient is counted at both ends."""
    options = serial_options(1, "CartPole-v1", actors=100, envs=1)
    own = {"num_shards": 31, "min_replay_transitions": 64, "batch_size": 32}
    with SerialRun("gorila", options, {**own, "replay_transitions": 2_000}) as run:
        run.advance_to("env_steps", env_steps)
        shards = [values for name, values in run.counters().items() if "parameter" in name]
        taken = [values["taken.gradients"] for values in shards]
        stale = [values["dropped.stale"] for values in shards]
        return {
            "env_steps": run.total("env_steps"),
            "gradients": run.total("gradients_sent"),
            "messages_sent": run.total("sent.gradients"),
            "messages_taken": sum(taken),
            "fewest_of_a_shard": min(taken),
            "most_of_a_shard": max(taken),
            "share_stale": sum(stale) / sum(taken),
        }


def downpour(period: int, env_steps: int = 20_000) -> dict[str, float]:
    """Bytes between processes and ages of gradients with this period of fetches and pushes."""
    own = {"server_options": {f"{way}_period_gradients": period for way in ("fetch", "push")}}
    ages = []
    with SerialRun("gorila", serial_options(1, "CartPole-v1", actors=4, envs=8), own) as run:
        for point in range(4_000, env_steps, 100):
            run.advance_to("env_steps", point)
            ages.append(run.total("gradient_age_updates") / 2)  # two shards
        kilobytes = run.bytes_between_processes() / run.total("env_steps") / 1e3
    return {"period": period, "kilobytes_per_env_step": kilobytes, "age": float(np.mean(ages))}


def memory(architecture: str, actors: int) -> dict[str, Any]:
    """Bytes that a run on Pong with the paper's constants allocates for experience and weights."""
    options = RunOptions("ALE/Pong-v5", num_actors=actors, preset="paper")
    topology = make_plan(architecture, options, {}).topology
    tables = [node.role.table for node in topology.of("replay")] if architecture != "a3c" else []
    stores = [table.make_store().blocks for table in tables]
    arrays = [array for blocks in stores for array in blocks.arrays.values()]
    arrays += [
        a for b in stores for stack in b.stacks.values() for a in (stack.frames, stack.places)
    ]
    return {
        "system": architecture,
        "actors": actors,
        "channels_bytes": bytes_of(topology),
        "replay_bytes": sum(array.nbytes for array in arrays),
    }


def annealing() -> list[dict[str, Any]]:
    """GA3C's tuner from a poor start: every setting that it tried, and its trainings per second."""
    _, tried = ControllerFinds(annealing_seconds=60.0)._annealed(seed=1)
    return tried


def draw(tried: list[dict[str, Any]], path: Path) -> None:
    """Counts and trainings per second over windows, as in GA3C's figure of its controller."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for kind in ("agents", "predictors", "trainers"):
        counts = [entry["setting"][kind] for entry in tried]
        left.step(range(len(tried)), counts, where="mid", label=kind)
    left.set_ylabel("number tried")
    left.legend(fontsize="small")
    right.plot([entry["throughput"] for entry in tried], "k-", linewidth=1)
    for kept, colour in ((True, "C2"), (False, "C3")):
        shown = [(i, e["throughput"]) for i, e in enumerate(tried) if e["kept"] == kept]
        right.plot(*zip(*shown, strict=True), "o", color=colour, label="kept" if kept else "undone")
    right.set_ylabel("trainings per second")
    right.legend(fontsize="small")
    for axis in (left, right):
        axis.set_xlabel("window of one second")
    figure.savefig(path)


def section() -> str:
    """The section of docs/evolution.md."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    gorila, (a3c, dqn) = found["gorila"], found["memory"]
    rows = [
        f"| {row['period']} | {row['kilobytes_per_env_step']:.2f} | {row['age']:.1f} |"
        f" {row['age'] * row['period']:.0f} |"
        for row in found["downpour"]
    ]
    return "\n".join(
        [
            "- **Gorila of the paper's size**, 31 shards and 100 bundles, on the serial backend:"
            f" {gorila['gradients']:,.0f} gradients left as {gorila['messages_sent']:,.0f}"
            f" messages, of which each shard took {gorila['fewest_of_a_shard']:,.0f} or"
            f" {gorila['most_of_a_shard']:,.0f} until the run ended. {gorila['share_stale']:.0%}"
            " were over 50 updates old, so they were dropped: with 100 learners raise"
            " `max_gradient_age_updates`.",
            "- **Memory**: on Pong with the papers' constants"
            f" {a3c['actors']} workers of `a3c` allocate {a3c['channels_bytes'] / 1e6:.0f} MB for"
            f" experience and weights, `dqn` a replay of {dqn['replay_bytes'] / 1e9:.1f} GB.",
            "- **Downpour**: fewer fetches and pushes of `gorila` (4 bundles) save bytes between"
            " processes and make gradients older, in gradients computed meanwhile:",
            "",
            "| gradients per fetch and push | kB per env step | age in updates | in gradients |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "- **GA3C's controller** climbs from 1 agent to 4. Other work took the cores after"
            " 30 windows; every change is then undone, because it is compared with the quiet time:",
            "",
            f"![Counts that GA3C's tuner tried, and trainings per second](images/{FIGURE.name})",
        ]
    )


def main() -> None:
    tried = annealing()
    draw(tried, FIGURE)
    found = {
        "machine": measuring.machine(),
        "gorila": gorila_of_the_papers_size(),
        "downpour": [downpour(period) for period in PERIODS],
        "memory": [memory("a3c", 16), memory("dqn", 1)],
        "annealing": tried,
    }
    print(measuring.save("lineage_facts", found))


if __name__ == "__main__":
    main()
