# SPDX-License-Identifier: Apache-2.0
"""Seconds from the start of the process to the first environment step and to the first update, for
each architecture and environment, with defaults; each run ends after its first update.

python benchmarks/start.py
python benchmarks/start.py --num-actors 15 --device cuda --name start_gpu
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import torch

_LOOK_SECONDS = 0.1
_END_SECONDS = 60.0  # what a run may take to save itself


def run_until_first_update(
    architecture: str, limit_seconds: float, options: dict[str, Any]
) -> dict[str, Any]:
    """result.json of a run that was ended, like any job, after its first update or its limit."""
    with tempfile.TemporaryDirectory(prefix="veldt-start-") as directory:
        run_dir = Path(directory) / "run"
        options = {"evaluation_episodes": 0, "max_seconds": limit_seconds, **options}
        command = measuring.train_command(architecture, run_dir, options)
        run = subprocess.Popen(
            command,
            cwd=measuring.ROOT,
            env=_installed(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while run.poll() is None and not _has_updated(run_dir):
            time.sleep(_LOOK_SECONDS)
        run.send_signal(signal.SIGTERM)
        _, words = run.communicate(timeout=_END_SECONDS)
        if not (run_dir / "result.json").exists():
            raise RuntimeError(f"{architecture} left no result: {words.strip()[-200:]}")
        found: dict[str, Any] = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        return found


def _installed() -> dict[str, str]:
    """This environment where packages keep their compiled code, as they do when installed."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _has_updated(run_dir: Path) -> bool:
    try:
        status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except OSError:
        return False
    return bool(status.get("updates"))


def measure(architecture: str, env: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One entry of the table: all repeats and their medians."""
    sizes = {"num_actors": arguments.num_actors, "device": arguments.device}
    options = {"env": env} | {name: value for name, value in sizes.items() if value is not None}
    results = [
        run_until_first_update(architecture, arguments.limit, {"seed": seed, **options})
        for seed in range(arguments.repeats)
    ]
    seconds = {
        name: [result[name] if result[name] is not None else math.nan for result in results]
        for name in ("start_seconds", "first_update_seconds")
    }
    return {
        "architecture": architecture,
        "env": env,
        "chosen": results[0]["chosen"],
        **seconds,
        "median_start_seconds": measuring.median(seconds["start_seconds"]),
        "median_first_update_seconds": measuring.median(seconds["first_update_seconds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", default=["sample_factory", "impala", "ppo"])
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "ALE/Pong-v5"])
    parser.add_argument("--num-actors", type=int)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of one run at most")
    parser.add_argument("--name", default="start", help="of the result file")
    arguments = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    machine = {**measuring.machine(), "gpu": gpu}
    entries = []
    for env in arguments.envs:
        for architecture in arguments.architectures:
            entries.append(measure(architecture, env, arguments))
            measuring.save(arguments.name, {"machine": machine, "runs": entries})
    names = ("median_start_seconds", "median_first_update_seconds")
    rows = [(f"{e['architecture']} {e['env']}", *(e[name] for name in names)) for e in entries]
    measuring.print_table(("run", "first step s", "first update s"), rows)


if __name__ == "__main__":
    main()
