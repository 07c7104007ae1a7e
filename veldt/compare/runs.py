# SPDX-License-Identifier: Apache-2.0
"""`veldt compare`: its options, its runs and their report; each run is a `veldt train` process.

A run is finished when its result.json says that it reached a budget or the target. An unfinished
run directory is moved aside, and the run is repeated.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.architectures import ARCHITECTURES, ON_ONE_PLAYER, check, label
from veldt.environments.lookup import GAME_PREFIXES
from veldt.errors import ConfigurationError, extra_module
from veldt.files import held_folder, keep_conditions
from veldt.options import Backend, RunOptions, Steps
from veldt.options.checked import Count, Options, Positive
from veldt.telemetry.record import RESULT_FILE
from veldt.telemetry.result import RunResult

if TYPE_CHECKING:
    from veldt.run.plan import Plan

ALL = "all"
_COSTS_FILE = "evidence.json"
SETTINGS_FILE = "compare.json"
_MAY_GROW = ("architectures", "seeds", "out")
_OF_EVERY_RUN = (
    *("env", "backend", "total_env_steps", "max_seconds", "target_return", "num_actors"),
    *("envs_per_actor", "network", "evaluation_episodes"),
)
_FINISHED = ("target", "env_steps", "seconds")
LogFn = Callable[[str], None]


@dataclass(frozen=True)
class Comparison(Options):
    """Options of `veldt compare`: one environment and one budget for all runs."""

    env: str
    """Gymnasium id, ALE/..., envpool:..., or module:function that makes an environment."""
    out: str
    """Folder of the runs, report.html, results.csv and figure; the same call continues there."""
    architectures: tuple[str, ...] = (ALL,)
    """Names or own files, comma separated; all: every one that fits the environment."""
    seeds: Count = 3
    """Runs of each architecture, with seeds 0, 1, ..."""
    max_seconds: Positive | None = None
    """Budget of each run in seconds."""
    total_env_steps: Steps | None = None
    """Budget of each run in environment steps."""
    target_return: float | None = None
    """End a run when it reaches this score; the report then compares times to it."""
    backend: Backend = "process"
    """Where nodes run: serial, process or ray."""
    num_actors: Count | None = None
    """Actors of each run; default: from the number of cores."""
    envs_per_actor: Count | None = None
    """Environments per actor; default: as in veldt train."""
    network: str = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    evaluation_episodes: Count = 20
    """Fresh episodes at the end of each run, whose mean return is its score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_seconds is None and self.total_env_steps is None:
            raise ConfigurationError("give every run a budget: --max-seconds or --total-env-steps")
        for name in self.names:
            check(name)
        labels = [label(name) for name in self.names]
        if len(set(labels)) < len(labels):
            raise ConfigurationError(f"two architectures have the same name: {', '.join(labels)}")

    @property
    def names(self) -> tuple[str, ...]:
        if self.architectures != (ALL,):
            return self.architectures
        return tuple(ARCHITECTURES) if str(self.env).startswith(GAME_PREFIXES) else ON_ONE_PLAYER

    @property
    def run_options(self) -> dict[str, Any]:
        """The options that every run receives."""
        given = {name: getattr(self, name) for name in _OF_EVERY_RUN}
        return {name: value for name, value in given.items() if value is not None}


def prepare_output_dir(comparison: Comparison) -> Path:
    """Make the output folder, or check that its runs have the same conditions."""
    for library in ("matplotlib", "jinja2"):
        extra_module(library, f"veldt compare draws its report with {library}", extra="plots")
    out = Path(comparison.out)
    conditions = {n: value for n, value in asdict(comparison).items() if n not in _MAY_GROW}
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
        keep_conditions(out / SETTINGS_FILE, "runs", conditions)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from error
    return out


@dataclass(frozen=True)
class RunTask:
    """One architecture with one seed."""

    architecture: str
    seed: int
    run_dir: Path
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{label(self.architecture)} seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The command line without `veldt`."""
        given = {**self.options, "seed": self.seed, "run_dir": self.run_dir}
        flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
        return ["train", self.architecture, *chain.from_iterable(flags), "--quiet"]

    @property
    def command(self) -> str:
        return shlex.join(["veldt", *self.arguments])


def tasks(comparison: Comparison, architectures: Iterable[str], out: Path) -> list[RunTask]:
    """All runs, seed by seed, so that an interrupted comparison covers every architecture."""
    names, options = list(architectures), comparison.run_options
    return [
        RunTask(name, seed, out / "runs" / f"{label(name)}-seed{seed}", options)
        for seed in range(comparison.seeds)
        for name in names
    ]


def finished(task: RunTask) -> RunResult | None:
    """The run's result, if it reached a budget or the target."""
    try:
        result = RunResult.load(task.run_dir / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None
    is_same = (result.architecture, result.seed) == (task.architecture, task.seed)
    return result if is_same and result.stopped_by in _FINISHED else None


def run_all(todo: list[RunTask], log: LogFn) -> dict[str, str]:
    """Run what is not finished; the last line of output of each failed run, by name."""
    failures = {}
    for number, task in enumerate(todo, start=1):
        place = f"[{number}/{len(todo)}] {task.name}"
        if finished(task) is not None:
            log(f"{place}: finished before")
            continue
        move_aside(task.run_dir)
        last_line = _run(task)
        result = finished(task)
        if result is None:
            failures[task.name] = last_line
            log(f"{place}: failed: {last_line}")
        else:
            score = result.evaluation_return
            shown = "no episode ended" if score is None else f"score {score:.1f}"
            log(f"{place}: {shown}, {result.env_steps:,} steps in {result.wall_seconds:.0f} s")
    return failures


def move_aside(run_dir: Path) -> None:
    """Rename an unfinished run's directory, unless it is still being written; deletes nothing."""
    if run_dir.exists():
        number = len(list(run_dir.parent.glob(f"{run_dir.name}.unfinished-*"))) + 1
        with held_folder(run_dir, "run", "--out"):
            run_dir.rename(run_dir.with_name(f"{run_dir.name}.unfinished-{number}"))


def _run(task: RunTask) -> str:
    """Run one process to its end; its last line of output."""
    log = task.run_dir.with_name(f"{task.run_dir.name}.log")
    with open(log, "wb") as output:
        # A session of its own: Ctrl-C must reach it once, through this process.
        process = subprocess.Popen(
            [sys.executable, "-m", "veldt", *task.arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def compare(comparison: Comparison) -> int:
    """Run what is missing and write the report; 1 if a run failed, else 0."""
    plans, left_out = _plans(comparison)
    out = prepare_output_dir(comparison)
    todo = tasks(comparison, [plan.architecture for plan in plans], out)
    log = partial(print, flush=True)
    failures = run_all(todo, log)

    # Imported here so that bad input is refused without matplotlib.
    from veldt.compare.records import collect, costs, machine, write_csv
    from veldt.compare.report import write_report

    records, command = collect(todo), shlex.join(["veldt", *sys.argv[1:]])
    topologies = {label(plan.architecture): plan.topology for plan in plans}
    found = costs(records, topologies)
    write_csv(out / "results.csv", records)
    document = {"env": comparison.env, "command": command, "machine": machine(), "systems": found}
    (out / _COSTS_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missing = [f"{name} does not fit: {why}" for name, why in left_out.items()]
    missing += [f"{name} failed: {why}" for name, why in failures.items()]
    write_report(out, comparison, command, records, todo, found, missing)
    log(f"report: {out / 'report.html'}")
    return 1 if failures else 0


def _plans(comparison: Comparison) -> tuple[list[Plan], dict[str, str]]:
    """A plan per architecture, and why others of `all` do not fit; named ones must fit."""
    from veldt.run.plan import make_plan

    plans, left_out = [], {}
    for name in comparison.names:
        try:
            plans.append(make_plan(name, RunOptions(**comparison.run_options), {}))
        except ConfigurationError as error:
            if comparison.architectures != (ALL,):
                raise
            left_out[name] = str(error)
    if not plans:
        raise ConfigurationError(next(iter(left_out.values())))
    return plans, left_out
