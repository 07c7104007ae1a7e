# SPDX-License-Identifier: Apache-2.0
"""A simulator without torch teaches a run CartPole: examples/external_cart_pole.py in a fresh
environment that has only grpcio, protobuf and gymnasium, beside `veldt train seed_rl`.

python benchmarks/external.py    writes benchmarks/results/external.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import ROOT, machine, save

EXAMPLE = ROOT / "examples" / "external_cart_pole.py"
TARGET, MAX_SECONDS = 475, 150


def fresh_environment(folder: Path) -> Path:
    """The Python of a new virtual environment with what a client needs, and no more."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-warn-script-location"]
    subprocess.run([*install, "grpcio", "protobuf", "gymnasium"], check=True)
    source = folder.with_name("source")  # a build leaves things behind where it is made
    source.mkdir()
    shutil.copytree(ROOT / "veldt", source / "veldt")
    for name in ("pyproject.toml", "PYPI.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*install, "--no-deps", str(source)], check=True)
    return python


def packages(python: Path) -> dict[str, str]:
    """What is installed there. ImportError where a client would find torch."""
    found = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"], check=True, capture_output=True
    )
    listed = {entry["name"]: entry["version"] for entry in json.loads(found.stdout)}
    if "torch" in listed:
        raise ImportError("this environment has torch")
    return listed


def trained(python: Path, folder: Path, seed: int, port: int) -> dict[str, Any]:
    """One run with one client, and twenty fresh episodes of what it learned."""
    address, run_dir = f"127.0.0.1:{port}", folder / f"run-{seed}"
    veldt = [sys.executable, "-m", "veldt"]
    command = [*veldt, "train", "seed_rl", "--env", f"external:{address}", "--seed", str(seed)]
    command += ["--target-return", str(TARGET), "--max-seconds", str(MAX_SECONDS)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        subprocess.Popen([*command, "--run-dir", str(run_dir)], cwd=ROOT) as run,
        subprocess.Popen([str(python), str(EXAMPLE), address], cwd=folder, env=environment) as him,
    ):
        run.wait()
        him.terminate()
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    evaluate = [*veldt, "evaluate", str(run_dir), "--env", "CartPole-v1", "--json"]
    played = subprocess.run(evaluate, cwd=ROOT, check=True, capture_output=True, text=True)
    kept = ("reached_target", "seconds_to_target", "env_steps", "mean_return_100", "dropped")
    found = {name: result[name] for name in kept}
    found["evaluation_mean"] = json.loads(played.stdout)["mean"]
    return {"seed": seed, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--port", type=int, default=5017)
    given = parser.parse_args()
    where = machine()
    with tempfile.TemporaryDirectory(prefix="veldt-external-") as name:
        folder = Path(name)
        python = fresh_environment(folder / "venv")
        client = packages(python)
        entries = [trained(python, folder, seed, given.port) for seed in range(given.seeds)]
    about = {"env": "CartPole-v1", "target_return": TARGET, "machine": where}
    about["client_lines"] = len(EXAMPLE.read_text(encoding="utf-8").splitlines())
    save("external", {**about, "client_packages": client, "entries": entries})


if __name__ == "__main__":
    main()
