# SPDX-License-Identifier: Apache-2.0
"""What faults cost: every architecture on processes, trained to 475 on CartPole-v1 with and without
random kills of its other nodes, and once more with its learner killed and the run resumed.

Writes benchmarks/results/chaos.json. `--soak MINUTES` watches for growth; `--outside TRIES` sends
faults from outside: signals to the group, dead fork servers and environment workers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import outside_faults
import soaking
from measuring import RESULTS, ROOT, machine, print_table, save

from veldt.architectures import ON_ONE_PLAYER

Run = dict[str, Any]
_SHORTEST_KILL_SECONDS = 0.5
_START_SECONDS = 60.0  # beyond a run's own limit: starting, evaluating, saving


def command(
    architecture: str, run_dir: Path, arguments: argparse.Namespace, seed: int
) -> list[str]:
    return [
        *(sys.executable, "-m", "veldt", "train", architecture, "--quiet", "--backend", "process"),
        *("--env", arguments.env, "--device", "cpu", "--run-dir", str(run_dir)),
        *("--target-return", str(arguments.target_return), "--seed", str(seed)),
        *("--max-seconds", str(arguments.max_seconds)),
    ]


def measured(words: list[str], run_dir: Path, arguments: argparse.Namespace) -> Run:
    """Run to the end; what result.json says of it, or its last words."""
    limit = arguments.max_seconds + _START_SECONDS
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
    )
    return outcome(run_dir, done.returncode, done.stderr)


def outcome(run_dir: Path, exit_code: int, stderr: str) -> Run:
    last = stderr.strip().splitlines()[-1:] if exit_code else []
    path = run_dir / "result.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    wanted = (
        "reached_target", "seconds_to_target", "env_steps", "updates", "env_steps_per_second",
        "restarts", "dropped", "aborted_episodes", "evaluation_return",
    )  # fmt: skip
    return {
        "exit_code": exit_code,
        **{name: result.get(name) for name in wanted},
        **({"words": last[0]} if last else {}),
    }


def undisturbed(architecture: str, arguments: argparse.Namespace, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="veldt-chaos-") as directory:
        run_dir = Path(directory) / "run"
        return measured(command(architecture, run_dir, arguments, seed), run_dir, arguments)


def disturbed(architecture: str, arguments: argparse.Namespace, seed: int) -> Run:
    """About every `kill_seconds`, some node that is not a learner is killed, stopped or delayed. A
    run that is done before anything happened to it is repeated with more."""
    kill_seconds = arguments.kill_seconds
    while True:
        run = struck(architecture, arguments, seed, kill_seconds)
        if run["restarts"] != 0 or kill_seconds < _SHORTEST_KILL_SECONDS:
            return {"kill_seconds": kill_seconds, **run}
        kill_seconds /= 3


def struck(architecture: str, arguments: argparse.Namespace, seed: int, kill_seconds: float) -> Run:
    with tempfile.TemporaryDirectory(prefix="veldt-chaos-") as directory:
        run_dir = Path(directory) / "run"
        words = command(architecture, run_dir, arguments, seed)
        spared = soaking.spared(architecture)
        words[1:3] = soaking.under_faults(f"{seed},{1.0 / kill_seconds}", spared)
        os.environ["VELDT_HANG_SECONDS"] = str(arguments.hang_seconds)
        words += ["--checkpoint-options", f"seconds={arguments.checkpoint_seconds}"]
        return measured(words, run_dir, arguments)


def resumed(architecture: str, arguments: argparse.Namespace, seed: int) -> Run:
    """Everything, the learner too, is killed at once after a checkpoint; then `veldt resume`."""
    with tempfile.TemporaryDirectory(prefix="veldt-chaos-") as directory:
        run_dir = Path(directory) / "run"
        words = command(architecture, run_dir, arguments, seed)
        words += ["--checkpoint-options", f"seconds={arguments.checkpoint_seconds}"]
        killed_after = kill_after_checkpoint(words, run_dir, arguments)
        if killed_after is None:  # it was done before its first checkpoint
            return {"killed_after_seconds": None}
        words = [sys.executable, "-m", "veldt", "resume", str(run_dir), "--quiet"]
        began = time.monotonic()
        run = measured(words, run_dir, arguments)
        run["resumed_seconds"] = time.monotonic() - began
        return {"killed_after_seconds": killed_after, **run}


def kill_after_checkpoint(
    words: list[str], run_dir: Path, arguments: argparse.Namespace
) -> float | None:
    """Seconds until the kill; None if the run ended before."""
    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        while process.poll() is None:
            if list((run_dir / "checkpoints").glob("checkpoint-*")):
                return time.monotonic() - began
            time.sleep(0.05)
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kept(repeated: list[str]) -> list[Run]:
    """Earlier runs of the architectures that are not run now."""
    path = RESULTS / "chaos.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return [entry for entry in earlier if entry["architecture"] not in repeated]


def row_of(architecture: str, entry: Run) -> tuple[object, ...]:
    calm, wild, back = (entry.get(name, {}) for name in ("undisturbed", "disturbed", "resumed"))

    def seconds(run: Run) -> object:
        found = run.get("seconds_to_target")
        return found if found is not None else float("nan")

    rates = [run.get("env_steps_per_second") or float("nan") for run in (calm, wild)]
    share = rates[1] / rates[0]
    return (
        architecture, seconds(calm), seconds(wild), wild.get("restarts"), *rates, share,
        seconds(back),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--architectures", nargs="+", help="[all; of a soak apex, of faults from outside impala]"
    )
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only watch for growth")
    parser.add_argument("--kill-every", type=float, default=30.0, help="seconds, of a soak")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--target-return", type=float, default=475.0)
    parser.add_argument("--max-seconds", type=float, default=240.0)
    parser.add_argument("--kill-seconds", type=float, default=5.0)
    parser.add_argument("--hang-seconds", type=float, default=5.0)
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--outside", type=int, metavar="TRIES", help="only faults from outside")
    parser.add_argument(
        "--kinds", nargs="+", default=list(outside_faults.KINDS), choices=outside_faults.KINDS,
        help="of faults from outside",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.soak:
        chosen = arguments.architectures or ["apex"]  # it has actors and a replay to kill
        soaking.main(chosen, arguments.soak, arguments.kill_every)
        return
    if arguments.outside:
        chosen = arguments.architectures or ["impala"]
        outside_faults.main(chosen, arguments.env, arguments.kinds, arguments.outside)
        return
    about = machine()
    arguments.architectures = arguments.architectures or list(ON_ONE_PLAYER)
    kinds = {"undisturbed": undisturbed, "disturbed": disturbed, "resumed": resumed}
    runs = kept(arguments.architectures)
    for architecture in arguments.architectures:
        for seed in range(1, arguments.seeds + 1):
            entry: Run = {"architecture": architecture, "seed": seed, "commit": about["commit"]}
            for name, run in kinds.items():
                entry[name] = run(architecture, arguments, seed)
                print(json.dumps({"architecture": architecture, name: entry[name]}), flush=True)
            runs.append(entry)
            # After every one: a benchmark of an hour must not lose all to its last minute.
            save("chaos", {"machine": about, "settings": vars(arguments), "runs": runs})
    header = (
        "architecture", "seconds", "with kills", "restarts", "steps/s", "with kills", "share",
        "after resume",
    )  # fmt: skip
    print_table(header, [row_of(entry["architecture"], entry) for entry in runs])


if __name__ == "__main__":
    main()
