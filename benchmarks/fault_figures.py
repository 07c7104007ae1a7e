# SPDX-License-Identifier: Apache-2.0
"""Runs the twenty fault tests and keeps what they counted, with the machine they ran on; at night
at the size that the plan asks for, and with Ray losing requests and responses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import RESULTS, ROOT, machine, save

FILES = (
    "tests/faults", "tests/checkpoints",
    "tests/wire", "tests/backends/test_faults.py", "tests/backends/test_load.py",
    "tests/backends/test_ray_nodes.py",
    "tests/backends/test_weights_at_full_speed.py",
)  # fmt: skip
FULL_SIZE = {
    "VELDT_ACTOR_KILLS": 1000,
    "VELDT_REPLAY_KILLS": 50,
    "VELDT_GROUP_KILLS": 50,
    "VELDT_BOARD_SECONDS": 600,
    "VELDT_FUZZED_FRAMES": 900_000,
    "VELDT_PRODUCERS": 256,
}
_SHARES = {"num_failures": -1, "req_failure_prob": 25, "resp_failure_prob": 25,
           "in_flight_failure_prob": 10}  # fmt: skip
_RPC_FAILURES = json.dumps({"CoreWorkerService.grpc_client.PushTask": _SHARES})
"""Of calls between Ray actors: lost requests, lost responses, failures in flight, in percent."""
_STEPS = 20_000
_LONGEST_SECONDS = 600.0


def main(nightly: bool) -> None:
    figures, passed = run_tests(FULL_SIZE if nightly else {})
    if nightly:
        figures["12"] = lossy_ray()
    path = RESULTS / "faults.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    tests = {**known.get("tests", {}), **figures}
    about = {"machine": machine(), "all_passed": passed, "full_size": nightly}
    save("faults", {**about, "tests": dict(sorted(tests.items()))})
    print(json.dumps(figures, indent=2))


def run_tests(sizes: dict[str, int]) -> tuple[dict[str, Any], bool]:
    """What the tests counted, by their number, and whether all of them passed."""
    with tempfile.TemporaryDirectory(prefix="veldt-figures-") as directory:
        path = Path(directory) / "figures.json"
        environment = {name: str(value) for name, value in sizes.items()}
        environment["VELDT_FAULT_FIGURES"] = str(path)
        timeout = ["--timeout", "7200"] if sizes else []
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *FILES, *timeout],
            cwd=ROOT,
            env={**os.environ, **environment},
            check=False,
        )
        figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return figures, done.returncode == 0


def lossy_ray() -> dict[str, Any]:
    """Test 12: the same run with and without failing RPCs. Reports are lost, too: the actors' steps
    may be counted seconds later than the learner's."""
    calm, wild = (ray_run(failures) for failures in ("", _RPC_FAILURES))
    return {
        "failing RPCs": _RPC_FAILURES,
        "without": calm,
        "with": wild,
        "runtime ratio": wild["seconds"] / calm["seconds"],
        "trained steps above steps taken": max(0, wild["trained"] - (wild["env_steps"] or 0)),
    }


def ray_run(rpc_failures: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="veldt-ray-") as directory:
        run_dir, began = Path(directory) / "run", time.monotonic()
        words = [sys.executable, "-m", "veldt", "train", "impala", "--quiet", "--backend", "ray"]
        words += ["--env", "CartPole-v1", "--num-actors", "2", "--envs-per-actor", "8"]
        words += ["--total-env-steps", str(_STEPS), "--evaluation-episodes", "0"]
        environment = {**os.environ, "RAY_testing_rpc_failure": rpc_failures}
        if not rpc_failures:
            del environment["RAY_testing_rpc_failure"]
        try:
            done = subprocess.run(
                [*words, "--run-dir", str(run_dir)], cwd=ROOT, env=environment,
                capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False,
            )  # fmt: skip
            code, last = done.returncode, done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            code, last = -1, ["it was not done in time"]
        path = run_dir / "result.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        rows = run_dir / "metrics.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        trained = json.loads(lines[-1]).get("counter/trained_env_steps", 0) if lines else 0
    return {
        "exit_code": code,
        **({"words": last[0]} if code and last else {}),
        "seconds": time.monotonic() - began,
        "trained": trained,
        **{name: result.get(name) for name in ("env_steps", "updates", "dropped", "restarts")},
    }
