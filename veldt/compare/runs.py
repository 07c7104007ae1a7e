# SPDX-License-Identifier: Apache-2.0
"""`veldt compare`: its options, its runs and their report; each run is a `veldt train` process.

A run is finished when its result.json says that it reached a budget or the target. An unfinished
run directory is moved aside, and the run is repeated.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.architectures import ARCHITECTURES, ON_ONE_PLAYER, check, label
from veldt.environments.lookup import GAME_PREFIXES
from veldt.errors import ConfigurationError, extra_module
from veldt.files import held_folder, keep_conditions
from veldt.options import Backend, Steps
from veldt.options.checked import Count, Options, Positive
from veldt.telemetry.record import RESULT_FILE
from veldt.telemetry.result import RunResult

if TYPE_CHECKING:
    from veldt.run.plan import Plan

ALL = "all"
_COSTS_FILE = "evidence.json"
SETTINGS_FILE = "compare.json"
_MAY_GROW = ("architectures", "contestants", "runs", "seeds", "out")
_OF_EVERY_RUN = (
    *("env", "backend", "total_env_steps", "max_seconds", "target_return", "num_actors"),
    *("envs_per_actor", "network", "evaluation_episodes"),
)
_FINISHED = ("target", "env_steps", "seconds")
LogFn = Callable[[str], None]
OptionsOf = Callable[[str], dict[str, Any]]
"""The options in the text of a contestant."""


@dataclass(frozen=True)
class Comparison(Options):
    """Options of `veldt compare`: one environment and one budget for all runs."""

    env: str
    """Gymnasium id, ALE/..., envpool:..., or module:function that makes an environment."""
    out: str
    """Folder of the runs, report.html, results.csv and figure; the same call continues there."""
    architectures: tuple[str, ...] | None = None
    """Names or own files, comma separated; all: every one that fits the environment [all, where
    neither contestants nor runs are named]."""
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
    contestants: tuple[str, ...] = field(
        default=(), metadata={"flag": "--contestant", "several": True}
    )
    """An architecture with options, such as "ppo --learning-rate 1e-3"; may be repeated."""
    runs: tuple[str, ...] = ()
    """Directories of runs that exist, comma separated, for the same report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names and self.max_seconds is None and self.total_env_steps is None:
            raise ConfigurationError("give every run a budget: --max-seconds or --total-env-steps")
        for name in self.names:
            check(name.split()[0])
        labels = [contestant_label(name) for name in self.names]
        if len(set(labels)) < len(labels):
            raise ConfigurationError(f"two architectures have the same name: {', '.join(labels)}")

    @property
    def names(self) -> tuple[str, ...]:
        named = self.architectures or (() if self.contestants or self.runs else (ALL,))
        if named == (ALL,):
            is_game = str(self.env).startswith(GAME_PREFIXES)
            named = tuple(ARCHITECTURES) if is_game else ON_ONE_PLAYER
        return (*named, *self.contestants)

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


def contestant_label(contestant: str) -> str:
    """A short name of an architecture and its options."""
    architecture, *options = contestant.split()
    return " ".join([label(architecture), *options])


@dataclass(frozen=True)
class RunTask:
    """One contestant with one seed."""

    contestant: str
    """An architecture, and options of its own."""
    seed: int
    run_dir: Path
    options: dict[str, Any]

    @property
    def architecture(self) -> str:
        return self.contestant.split()[0]

    @property
    def name(self) -> str:
        return f"{contestant_label(self.contestant)} seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The command line without `veldt`."""
        given = {**self.options, "seed": self.seed, "run_dir": self.run_dir}
        flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
        architecture, *own = shlex.split(self.contestant)
        return ["train", architecture, *chain.from_iterable(flags), *own, "--quiet"]

    @property
    def command(self) -> str:
        return shlex.join(["veldt", *self.arguments])


def tasks(comparison: Comparison, contestants: Iterable[str], out: Path) -> list[RunTask]:
    """All runs, seed by seed, so that an interrupted comparison covers every contestant."""
    folders = {name: re.sub(r"[^\w.=-]+", "-", contestant_label(name)) for name in contestants}
    return [
        RunTask(name, seed, out / "runs" / f"{folder}-seed{seed}", comparison.run_options)
        for seed in range(comparison.seeds)
        for name, folder in folders.items()
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


def compare(comparison: Comparison, options_of: OptionsOf = lambda text: {}) -> int:
    """Run what is missing and write the report; 1 if a run failed, else 0."""
    plans, left_out = _plans(comparison, options_of)
    out = prepare_output_dir(comparison)
    todo = tasks(comparison, plans, out)
    log = partial(print, flush=True)
    failures = run_all(todo, log)

    # Imported here so that bad input is refused without matplotlib.
    from veldt.compare.records import collect, costs, existing, machine, write_csv
    from veldt.compare.report import write_report

    records = {**collect(todo), **existing(comparison.runs)}
    command = shlex.join(["veldt", *sys.argv[1:]])
    topologies = {contestant_label(name): plan.topology for name, plan in plans.items()}
    found = costs(records, topologies)
    write_csv(out / "results.csv", records)
    document = {"env": comparison.env, "command": command, "machine": machine(), "systems": found}
    (out / _COSTS_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missing = [f"{name} does not fit: {why}" for name, why in left_out.items()]
    missing += [f"{name} failed: {why}" for name, why in failures.items()]
    write_report(out, comparison, command, records, todo, found, missing)
    log(f"report: {out / 'report.html'}")
    return 1 if failures else 0


def _plans(comparison: Comparison, options_of: OptionsOf) -> tuple[dict[str, Plan], dict[str, str]]:
    """A plan per contestant, and why others of `all` do not fit; named ones must fit."""
    from veldt.api import split_options
    from veldt.run.plan import make_plan

    plans, left_out = {}, {}
    for name in comparison.names:
        try:
            given = {**comparison.run_options, **options_of(name)}
            plans[name] = make_plan(name.split()[0], *split_options(given))
        except ConfigurationError as error:
            if comparison.architectures not in (None, (ALL,)) or name in comparison.contestants:
                raise
            left_out[name] = str(error)
    if left_out and not plans:
        raise ConfigurationError(next(iter(left_out.values())))
    return plans, left_out
