# SPDX-License-Identifier: Apache-2.0
"""A long run whose processes keep being killed must not grow: memory, file descriptors and threads
of its whole process tree, sampled while it runs, with the slopes of straight lines through them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from measuring import RESULTS, ROOT, machine, print_table, save

Sample = dict[str, float]
_PROC = Path("/proc")
_MIB = 1 << 20
_SETTLE_SHARE = 0.2  # the first fifth fills replays, caches and allocators
_FAULTS_PER_KILL = 4 / 3  # of four faults of the chaos mode one only delays a process
_CLOSING_SECONDS = 90.0
QUANTITIES = ("pss_mib", "memfd_mib", "descriptors", "threads", "processes")
LEARNERS = "learner,trainer"
_SPARES_NOBODY = ("dqn", "gorila", "a3c", "ga3c", "seed_rl")
"""Their learners share processes with roles that must be killed too, and come back with them."""


def tree_of(root: int) -> list[int]:
    """`root` and every process below it."""
    parents: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += parents.get(pid, ())
    return found


def sample_tree(root: int, seconds: float) -> Sample:
    """What all processes hold together. A page that several share counts once in `pss_mib`."""
    total = dict.fromkeys(("pss_mib", "rss_mib", "descriptors", "threads", "processes"), 0.0)
    memory_files: dict[str, int] = {}
    for pid in tree_of(root):
        with suppress(OSError, ValueError):  # it ended while it was looked at
            for name, value in _sample_one(_PROC / str(pid), memory_files).items():
                total[name] += value
    return {"seconds": seconds, **total, "memfd_mib": sum(memory_files.values()) / _MIB}


def spared(architecture: str) -> str:
    """The kinds of nodes that faults leave alone."""
    return "" if architecture in _SPARES_NOBODY else LEARNERS


def under_faults(faults: str, spared: str) -> list[str]:
    """In place of `-m veldt`: the same command with SEED,RATE faults in its processes."""
    return [str(ROOT / "benchmarks" / "faults_inside.py"), faults, spared]


def _sample_one(process: Path, memory_files: dict[str, int]) -> Sample:
    sizes = dict(_fields((process / "smaps_rollup").read_text()))
    status = dict(_fields((process / "status").read_text()))
    descriptors = len(os.listdir(process / "fd"))
    for line in (process / "maps").read_text().splitlines():
        if "/memfd:" in line:
            span, _, _, _, inode, *_ = line.split()
            start, end = (int(bound, 16) for bound in span.split("-"))
            memory_files[inode] = max(memory_files.get(inode, 0), end - start)
    return {
        "pss_mib": sizes["Pss"] / 1024,
        "rss_mib": sizes["Rss"] / 1024,
        "descriptors": descriptors,
        "threads": status["Threads"],
        "processes": 1,
    }


def _fields(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            yield name, float(words[0])


def slope_per_hour(samples: list[Sample], name: str) -> dict[str, float]:
    """Least squares over the settled part, with its standard error and both halves' medians."""
    settled = samples[int(len(samples) * _SETTLE_SHARE) :]
    x = [sample["seconds"] / 3600 for sample in settled]
    y = [sample[name] for sample in settled]
    slope, intercept = statistics.linear_regression(x, y)
    residuals = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    half = len(y) // 2
    return {
        "per_hour": slope,
        "standard_error": (residuals / max(1, len(x) - 2) / spread) ** 0.5,
        "median_first_half": statistics.median(y[:half]),
        "median_second_half": statistics.median(y[half:]),
    }


def soak(architecture: str, minutes: float, kill_every: float, sample_every: float) -> Any:
    """Train for `minutes` while processes are killed, as a user would, and watch from outside."""
    with tempfile.TemporaryDirectory(prefix="veldt-soak-") as directory:
        run_dir = Path(directory) / "run"
        process = subprocess.Popen(
            [
                sys.executable,
                *under_faults(f"1,{_FAULTS_PER_KILL / kill_every}", spared(architecture)),
                *("train", architecture, "--quiet"),
                *("--env", "CartPole-v1", "--device", "cpu", "--run-dir", str(run_dir)),
                *("--max-seconds", str(60 * minutes), "--evaluation-episodes", "0"),
            ],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "VELDT_HANG_SECONDS": "10"},
        )  # fmt: skip
        samples = _watch(process, 60 * minutes, sample_every)
        assert process.stderr is not None
        words = process.stderr.read().strip().splitlines()[-1:]
        path = run_dir / "result.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        "architecture": architecture,
        "minutes": minutes,
        "kill_every_seconds": kill_every,
        "exit_code": process.returncode,
        **({"words": words[0]} if process.returncode and words else {}),
        "kills_survived": result.get("restarts"),
        **{name: result.get(name) for name in ("env_steps", "updates", "env_steps_per_second")},
        "mean_return_100": result.get("mean_return_100"),
        "growth": {name: slope_per_hour(samples, name) for name in QUANTITIES},
        "samples": samples,
    }


def _watch(process: subprocess.Popen[str], seconds: float, sample_every: float) -> list[Sample]:
    began, samples = time.monotonic(), []
    while process.poll() is None:
        elapsed = time.monotonic() - began
        if elapsed > seconds + _CLOSING_SECONDS:
            process.send_signal(signal.SIGKILL)
            break
        if elapsed >= sample_every * (len(samples) + 1) and elapsed < seconds:
            samples.append(sample_tree(process.pid, elapsed))
        time.sleep(0.2)
    process.wait()
    return samples


def draw(run: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = ("pss_mib", "memfd_mib", "descriptors", "threads")
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 5), sharex=True)
    minutes = [sample["seconds"] / 60 for sample in run["samples"]]
    for axis, name in zip(axes.flat, names, strict=True):
        axis.plot(minutes, [sample[name] for sample in run["samples"]], color="#3b6ea5")
        axis.set_ylim(bottom=0)
        slope = run["growth"][name]
        text = f"{slope['per_hour']:+.2f} ± {slope['standard_error']:.2f} per hour"
        axis.set_title(f"{name.replace('_mib', ', MiB')}: {text}", fontsize=9)
    for axis in axes[1]:
        axis.set_xlabel(f"minutes; {run['kills_survived']} kills survived")
    figure.suptitle(f"{run['architecture']}, a kill about every {run['kill_every_seconds']:g} s")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(
    architectures: list[str], minutes: float, kill_every: float, sample_every: float = 10.0
) -> None:
    """One soak after the other; benchmarks/results/soak.json keeps the latest of each."""
    for architecture in architectures:
        run = {"machine": machine(), **soak(architecture, minutes, kill_every, sample_every)}
        path = RESULTS / "soak.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        save("soak", {**known, architecture: run})
        draw(run, RESULTS / f"soak_{architecture}.png")
        print(f"{architecture}: exit code {run['exit_code']}, {run['kills_survived']} kills")
        header = ("quantity", "per hour", "+-", "first half", "second half")
        rows = [(name, *run["growth"][name].values()) for name in QUANTITIES]
        print_table(header, rows)
