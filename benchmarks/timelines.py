# SPDX-License-Identifier: Apache-2.0
"""Timelines of real runs for docs/architectures, and what recording one costs.

python benchmarks/timelines.py           pictures of all architectures into docs/timelines
python benchmarks/timelines.py --cost    the share of a node's time that recording takes
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import timeit
from collections import Counter
from pathlib import Path
from typing import Any

import measuring
from timeline_picture import picture

from veldt.architectures import ARCHITECTURES
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeTelemetry, Stage, span_bytes

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "timelines"
MOST_COST = 0.02
ENV = "benchmarks.environments:sleeping"
ENV_OF = {"league": "veldt:kuhn"}


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
            env, many = ENV_OF.get(name, ENV), 1 if name == "dqn" else actors
            result, trace = recorded(name, folder, env=env, num_actors=many)
        (PICTURES / f"{name}.svg").write_text(picture(trace) + "\n", encoding="utf-8")
        shares = trace["otherData"]["stage_shares"]
        apart = [
            abs(share - shares[kind].get(stage, 0.0))
            for kind, stages in result["stage_shares"].items()
            for stage, share in stages.items()
        ]
        found[name] = {
            "env": env,
            "actors": trace["otherData"]["actors"],
            "envs_per_actor": trace["otherData"]["envs_per_actor"],
            "events": len(trace["traceEvents"]),
            "furthest_points": 100 * max(apart),
        }
        print(name, found[name], flush=True)
    return found


def cost(architectures: list[str]) -> dict[str, Any]:
    """The share of its time that the busiest node spends on recording: spans per second of a real
    run times what a span costs. Unlike two rates, this does not move with the machine's load."""
    per_span = span_seconds()
    found: dict[str, Any] = {"seconds_per_span": per_span, "limit": MOST_COST, "runs": {}}
    for name in architectures:
        with tempfile.TemporaryDirectory() as scratch:
            _, trace = recorded(name, Path(scratch) / name, env="CartPole-v1")
        spans = Counter(event["tid"] for event in trace["traceEvents"] if event["ph"] == "X")
        rate = max(spans.values()) / trace["otherData"]["seconds"]
        found["runs"][name] = {"spans_per_second": rate, "share": rate * per_span}
        print(name, found["runs"][name], flush=True)
    found["highest_share"] = max(run["share"] for run in found["runs"].values())
    return found


def span_seconds(passes: int = 100_000) -> float:
    """What recording adds to a pass of a stage; the least of several attempts."""
    seconds = []
    for ring in (0, span_bytes(60.0)):
        stage = NodeTelemetry(memoryview(bytearray(TELEMETRY_BYTES + ring))).stage("step")

        def work(stage: Stage = stage) -> None:
            with stage:
                pass

        seconds.append(min(timeit.repeat(work, number=passes, repeat=7)) / passes)
    return seconds[1] - seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    arguments = parser.parse_args()
    path = measuring.RESULTS / "timelines.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine = measuring.machine()
    if arguments.cost:
        document["cost"] = {**cost(arguments.only), "machine": machine}
        print(document["cost"]["highest_share"])
    else:
        shown = pictures(arguments.only, arguments.actors)
        before = document.get("pictures", {}).get("runs", {})
        document["pictures"] = {"env": ENV, "runs": {**before, **shown}, "machine": machine}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
