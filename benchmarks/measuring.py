# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: run `veldt train` as a user does, describe the machine, keep results."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from veldt.compare.records import cpu_model, versions
from veldt.telemetry.aggregate import steady_rate
from veldt.telemetry.log_files import metric_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py", "ray")


@dataclass(frozen=True)
class Training:
    """One finished `veldt train`."""

    result: dict[str, Any]
    trained_steps_per_second: float
    """Env steps that reached an update, per second of steady state; with replay a step counts as
    often as it is drawn."""
    updates_per_second: float
    rows: list[dict[str, Any]]
    """Of metrics.jsonl."""


def train(architecture: str, limit_seconds: float, **options: object) -> Training:
    """Run `veldt train` in a process of its own; RuntimeError with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="veldt-benchmark-") as directory:
        run_dir = Path(directory) / "run"
        command = train_command(architecture, run_dir, options)
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"{architecture} ended with exit code {done.returncode}: {words[0]}")
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        rows = metric_rows(run_dir)
    trained = steady_rate(rows, "counter/trained_env_steps")
    return Training(result, trained, steady_rate(rows, "updates"), rows)


def tree_bytes(pid: int) -> int | None:
    """Proportional set size of a process and its descendants: shared pages count once.

    None where the operating system does not report it."""
    sizes = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error, AttributeError):  # it ended, or this is not Linux
                sizes.append(process.memory_full_info().pss)
    return sum(sizes) or None


def train_command(architecture: str, run_dir: Path, options: dict[str, Any]) -> list[str]:
    command = [sys.executable, "-m", "veldt", "train", architecture, "--quiet"]
    for name, value in {"run_dir": run_dir, **options}.items():
        command += _flag(name.replace("_", "-"), value)
    return command


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        value = ",".join(f"{key}={entry}" for key, entry in value.items())
    return [f"--{name}", str(value)]


def machine() -> dict[str, Any]:
    """Where and with what a result was measured."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions(_LIBRARIES),
        "commit": _commit(),
        "command": " ".join(["python", *_words(sys.argv)]),
    }


def _words(argv: list[str]) -> list[str]:
    """What was measured, without the folder that its figures went to."""
    if "--results" not in argv:
        return argv
    place = argv.index("--results")
    return argv[:place] + argv[place + 2 :]


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "veldt", "benchmarks")
    return git("rev-parse", "--short", "HEAD") + ("-modified" if changed else "")


def median(values: list[float]) -> float:
    """The median of what is known; NaN when nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def save(name: str, payload: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json; numbers that are not known become null."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(plain(payload), indent=2) + "\n", encoding="utf-8")
    return path


def plain(value: Any) -> Any:
    """What JSON can hold: six digits, and null for what is not a number."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def print_table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Left-aligned words, right-aligned numbers."""
    texts = [header, *(tuple(_text(cell) for cell in row) for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    for number, row in enumerate(texts):
        cells = zip(row, widths, strict=True)
        line = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(cells)]
        print("  ".join(line).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _text(cell: object) -> str:
    if isinstance(cell, float):
        if math.isnan(cell):
            return "-"
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.2f}"
    return str(cell)
