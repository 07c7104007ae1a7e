# SPDX-License-Identifier: Apache-2.0
"""Timelines of real runs for docs/architectures, and what recording one costs.

python benchmarks/timelines.py           pictures of all architectures into docs/timelines
python benchmarks/timelines.py --cost    trained steps/s with `--timeline` over those without

Runs with and without alternate, so that a slow minute of the machine hits both; medians count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measuring

from veldt.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "timelines"
TARGET_RATIO = 0.98
ENV = "veldt:sleeping?step_ms=1"


def recorded(architecture: str, folder: Path, **options: object) -> tuple[Any, Any]:
    """The result and the trace of one run."""
    given = {"env": ENV, "max_seconds": 9, "evaluation_episodes": 0, "timeline": 4, **options}
    subprocess.run(measuring.train_command(architecture, folder, given), check=True)
    files = (folder / name for name in ("result.json", "timeline.json"))
    result, trace = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return result, trace


def pictures(names: list[str], actors: int) -> dict[str, Any]:
    """Record each architecture; how far its shares are from those of result.json, in points."""
    PICTURES.mkdir(exist_ok=True)
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            result, trace = recorded(name, folder, num_actors=1 if name == "dqn" else actors)
            shutil.copyfile(folder / "timeline.svg", PICTURES / f"{name}.svg")
        shares = trace["otherData"]["stage_shares"]
        apart = [
            abs(share - shares[kind].get(stage, 0.0))
            for kind, stages in result["stage_shares"].items()
            for stage, share in stages.items()
        ]
        found[name] = {
            "actors": trace["otherData"]["actors"],
            "envs_per_actor": trace["otherData"]["envs_per_actor"],
            "events": len(trace["traceEvents"]),
            "furthest_points": 100 * max(apart),
        }
        print(name, found[name], flush=True)
    return found


def cost(architecture: str, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        for kind, more in (("without", {}), ("with", {"timeline": 30})):
            options = {"env": "CartPole-v1", "max_seconds": 10, "evaluation_episodes": 0, **more}
            done = measuring.train(architecture, 60, **options)
            rates[kind].append(done.trained_steps_per_second)
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    ratio = medians["with"] / medians["without"]
    return {"rates": rates, "medians": medians, "ratio": ratio, "target": TARGET_RATIO}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    arguments = parser.parse_args()
    path = measuring.RESULTS / "timelines.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine = measuring.machine()
    if arguments.cost:
        document["cost"] = {**cost("impala", arguments.rounds), "machine": machine}
        print(document["cost"]["ratio"])
    else:
        shown = pictures(arguments.only, arguments.actors)
        before = document.get("pictures", {}).get("runs", {})
        document["pictures"] = {"env": ENV, "runs": {**before, **shown}, "machine": machine}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
