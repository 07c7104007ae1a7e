# SPDX-License-Identifier: Apache-2.0
"""Leagues side by side, each on cores of its own; what is known of them is on disk all the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measuring

import veldt

_FINISHED = ("env_steps", "seconds")
_SAVE_SECONDS = 5.0
_ENDING_SECONDS = 20.0  # what a run may take for its last measures after it was told to end


@dataclass(frozen=True)
class Job:
    """One `veldt train league`."""

    name: str
    seed: int
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.name}-{self.seed}"


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    run_dir: Path
    cores: list[int]
    began: float
    told_to_end: float | None = None


def is_finished(job: Job, entries: Mapping[str, dict[str, Any]]) -> bool:
    known = entries.get(job.key)
    return known is not None and known["finished"] and known["options"] == _options(job)


def run_here(
    jobs: list[Job],
    deadline_seconds: float,
    save: Callable[[dict[str, dict[str, Any]]], None],
    entries: dict[str, dict[str, Any]],
) -> None:
    """Serial leagues one after the other in this process: short ones would mostly import."""
    end = time.monotonic() + deadline_seconds
    for job in jobs:
        if is_finished(job, entries) or time.monotonic() > end:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="veldt-league-") as folder:
            run_dir, options = Path(folder) / job.key, dict(job.options)
            env = options.pop("env")
            veldt.train("league", env, run_dir=str(run_dir), seed=job.seed, **options)
            entries[job.key] = _entry(job, run_dir, began, ended=True)
        print(_line(entries[job.key]), flush=True)
        save(entries)


@dataclass
class Lanes:
    """As many jobs at once as there are lanes of `cores_each`; the first ones first."""

    jobs: list[Job]
    count: int
    cores_each: int
    job_seconds: float
    """After which a run ends by itself."""
    deadline_seconds: float
    """After which all end, and none begins."""
    save: Callable[[dict[str, dict[str, Any]]], None]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By key; those that are finished are not run again."""

    def run(self) -> None:
        began = time.monotonic()
        waiting = [job for job in self.jobs if not is_finished(job, self.entries)]
        lanes = self._lanes()
        running: list[_Running] = []
        next_save = 0.0
        with tempfile.TemporaryDirectory(prefix="veldt-league-") as folder:
            while waiting or running:
                late = time.monotonic() - began > self.deadline_seconds
                if late:
                    waiting = []
                    for one in running:
                        _tell_to_end(one)
                while waiting and lanes:
                    running.append(self._start(waiting.pop(0), lanes.pop(0), Path(folder)))
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    lanes.append(one.cores)
                    self.entries[one.job.key] = _entry(one.job, one.run_dir, one.began, ended=True)
                    print(_line(self.entries[one.job.key]), flush=True)
                    next_save = 0.0
                if time.monotonic() >= next_save:
                    for one in running:
                        self.entries[one.job.key] = _entry(
                            one.job, one.run_dir, one.began, ended=False
                        )
                    self.save(self.entries)
                    next_save = time.monotonic() + _SAVE_SECONDS
                time.sleep(0.2)
        self.save(self.entries)

    def _lanes(self) -> list[list[int]]:
        cores = sorted(os.sched_getaffinity(0))
        each = self.cores_each
        lanes = [cores[i : i + each] for i in range(0, len(cores) - each + 1, each)]
        if len(lanes) < self.count:
            raise SystemExit(
                f"{self.count} jobs of {each} cores need {self.count * each} cores and there are"
                f" {len(cores)}; use --jobs {len(lanes)}"
            )
        return lanes[: self.count]

    def _start(self, job: Job, cores: list[int], folder: Path) -> _Running:
        run_dir = folder / job.key
        options = {**job.options, "seed": job.seed, "max_seconds": self.job_seconds}
        command = measuring.train_command("league", run_dir, options)
        with open(folder / f"{job.key}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=measuring.ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        return _Running(job, process, run_dir, cores, time.monotonic())


def _tell_to_end(one: _Running) -> None:
    now = time.monotonic()
    if one.told_to_end is None:
        one.process.send_signal(signal.SIGTERM)
        one.told_to_end = now
    elif now - one.told_to_end > _ENDING_SECONDS:
        one.process.kill()


def _options(job: Job) -> dict[str, Any]:
    """As they come back from a file of results."""
    return json.loads(json.dumps(measuring.plain(dict(job.options))))


def _entry(job: Job, run_dir: Path, began: float, ended: bool) -> dict[str, Any]:
    result = _json(run_dir / "result.json")
    curve = _curve(run_dir / "league" / "measures.jsonl")
    entry: dict[str, Any] = {
        "name": job.name,
        "seed": job.seed,
        "options": _options(job),
        "finished": ended and result.get("stopped_by") in _FINISHED,
        "seconds": time.monotonic() - began,
        "env_steps": curve[-1]["env_steps"] if curve else 0,
        "curve": curve,
    }
    if ended and not result:
        log = run_dir.parent / f"{job.key}.log"
        entry["last_words"] = log.read_text(errors="replace").strip().splitlines()[-3:]
    if result and result.get("league"):
        league = result["league"]
        entry |= {
            "stopped_by": result["stopped_by"],
            "env_steps": result["env_steps"],
            "seconds": result["wall_seconds"],
            "env_steps_per_second": result["env_steps_per_second"],
            "restarts": result["restarts"],
            "final": league["measures"],
            "best": league["best"],
            "league": {name: league[name] for name in ("players", "frozen", "games")},
            "lowest_win_rate_against_own_past": league["lowest_win_rate_against_own_past"],
        }
        if job.options["env"] == "veldt:connect_four":
            # No exact measure exists; the last model plays 1,000 games.
            import connect_four

            entry["final"] = {"alpha_beta.win_rate": connect_four.win_rate_of(run_dir)}
            entry["curve"] = [
                {name: entry[name] for name in ("seconds", "env_steps")} | entry["final"]
            ]
    return entry


def _curve(path: Path) -> list[dict[str, float]]:
    """Measures by env steps, with the seconds since the first of them."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # it is being written
    began = rows[0]["time"] if rows else 0.0
    return [
        {"seconds": round(row["time"] - began, 1), **{k: v for k, v in row.items() if k != "time"}}
        for row in rows
    ]


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _line(entry: dict[str, Any]) -> str:
    if "final" not in entry:
        return f"{entry['name']} seed {entry['seed']}: no result; {entry.get('last_words')}"
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in entry.get("final", {}).items())
    return (
        f"{entry['name']} seed {entry['seed']}: {numbers}; {entry['env_steps']:,} env steps in"
        f" {entry['seconds']:.0f} s ({entry['stopped_by']})"
    )
