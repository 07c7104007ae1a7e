# SPDX-License-Identifier: Apache-2.0
"""The Python interface: the same runs and results as on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from veldt.architectures import modules_of
from veldt.backends import BACKENDS, prestart
from veldt.callbacks import Callback
from veldt.dashboard.child import LivePage, check_installed
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import format_value, with_values
from veldt.remote.location import RunLocation, local_run, run_location
from veldt.run.config_files import RESUMABLE, read_config, saved_options, with_config
from veldt.run.process import (
    START_SECONDS,
    OutOfTime,
    check_main_is_guarded,
    output_stream,
    time_limit,
    working_directory,
)
from veldt.telemetry.result import RunResult, dumps
from veldt.trackers.child import Trackers, check_trackers

if TYPE_CHECKING:
    from typing import Unpack

    from veldt.commands.evaluate import EvaluationResult
    from veldt.networks import FirstWeights
    from veldt.options.keywords import ResumeOptions, SweepKeywords, TrainOptions
    from veldt.policy import TrainedPolicy
    from veldt.policy.export import Exported
    from veldt.run.plan import Plan
    from veldt.sweeps.command import SweepResult

_LEAST_PLANNING_SECONDS = 1.0
_COMMON = {entry.name for entry in fields(RunOptions)}


def train(
    architecture: str | Path | None = None,
    env: str | Callable[..., object] | None = None,
    callbacks: Sequence[Callback] = (),
    config: str | Path | None = None,
    trust_code: bool = False,
    **options: Unpack[TrainOptions],
) -> RunResult:
    """Train an architecture on an environment.

    Args:
        architecture: name of an architecture, or path of a Python file with one.
        env: Gymnasium id, ALE/..., envpool:..., veldt:..., pettingzoo:..., module:function, or a
            function that makes an environment.
        callbacks: receive the events of the run, and can end it.
        config: file with options, or config.json of a run, for options that are not given here.
        trust_code: run the Python files that `config` or `from_run` name, even if they changed.
        **options: options of every run (veldt.options.RunOptions) and of the architecture.

    Returns:
        The result, which is also in RUN_DIR/result.json.

    >>> result = train("impala", env="CartPole-v1", target_return=475)  # doctest: +SKIP
    """
    given: dict[str, Any] = {**options} if env is None else {"env": env, **options}
    file = None if config is None else read_config(config, trust_code)
    named = None if architecture is None else str(architecture)
    name, everything = with_config(named, {"quiet": True, **given}, file)
    return train_from(name, everything, None, callbacks, trust_code)


def train_from(
    architecture: str,
    options: dict[str, Any],
    began: float | None = None,
    callbacks: Sequence[Callback] = (),
    trust_code: bool = False,
) -> RunResult:
    """Train with all options in one mapping; `began`: time.monotonic() at the program's start."""
    if "env" not in options:
        raise ConfigurationError(f"name an environment: veldt train {architecture} --env ID")
    _check_and_prestart(architecture, options)

    from veldt.run import directory
    from veldt.run.driver import show_result

    common, own = split_options(options)
    base = working_directory()  # an environment may change it, even while it is tried
    location = run_location(common.run_dir, base)
    stored = directory.run_to_continue(location.path, common.run_dir)
    if stored is None or location.path is None:
        stored, weights = None, first_weights(common, trust_code)
        plan = _planned(architecture, common, own, began, weights)
    else:
        plan = _planned(architecture, directory.with_saved_sizes(common, stored), own, began)
        directory.check_same_options(location.path, plan, stored)
        if result := directory.finished_result(location.path, common, stored):
            ended = result  # files that a store lacks are uploaded
            return location.uploading(
                plan.options.checkpoint_options.keep, (), lambda _: show_result(plan, ended)
            )
    return _executed(plan, location, callbacks, base, began, resume=stored is not None)


def _check_and_prestart(architecture: str, options: Mapping[str, Any]) -> None:
    """Refuse what cannot run here, and let the fork server import torch while this process does."""
    if options.get("dashboard", False) is not False:
        check_installed()
    check_trackers(options.get("trackers", ()))
    backend = str(options.get("backend", "process"))
    if backend in BACKENDS and BACKENDS[backend].starts_processes:
        check_main_is_guarded()
    prestart(backend, modules_of(architecture))


def _executed(
    plan: Plan,
    location: RunLocation,
    callbacks: Sequence[Callback],
    base: Path,
    began: float | None,
    resume: bool,
) -> RunResult:
    """Run a plan to its end."""
    from veldt.run.driver import Run

    sidecars = [LivePage(plan.options.dashboard), Trackers(plan.options.trackers)]

    def execute(callbacks: Sequence[Callback]) -> RunResult:
        return Run(plan, began, resume, base, location.path, callbacks, sidecars).execute()

    return location.uploading(plan.options.checkpoint_options.keep, callbacks, execute)


def first_weights(options: RunOptions, trust_code: bool = False) -> FirstWeights | None:
    """The weights of the run that `from_run` names; None where it names none."""
    if options.from_run is None:
        return None
    from veldt.run.loading import first_weights as weights_of

    return weights_of(options.from_run, local_run, trust_code)


def sweep(
    architecture: str | None = None,
    env: str | None = None,
    search: Sequence[str] = (),
    config: str | Path | None = None,
    trust_code: bool = False,
    **options: Unpack[SweepKeywords],
) -> SweepResult:
    """Search options over many runs with Optuna; a sweep whose folder exists continues.

    Args:
        architecture: as in `train`.
        env: as in `train`, but not a function: each run is a process of its own.
        search: options and their values, NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C.
        config: as in `train`.
        trust_code: as in `train`.
        **options: `trials`, `parallel`, `pruner`, `startup_trials`, `sampler_seed`, `out`, and
            the options of each run.

    Returns:
        All trials and the best one, also in result.json of the sweep's folder.

    >>> search = ["learning_rate=1e-5..1e-1:log"]
    >>> result = sweep("impala", "CartPole-v1", search, max_seconds=20)  # doctest: +SKIP
    """
    from veldt.sweeps.command import sweep as run_sweep
    from veldt.sweeps.search import take_sweep_options

    given: dict[str, Any] = {**options} if env is None else {"env": env, **options}
    settings = take_sweep_options(given)
    file = None if config is None else read_config(config, trust_code)
    name, everything = with_config(architecture, given, file)
    if "env" not in everything:
        raise ConfigurationError(f"name an environment: sweep({name!r}, env=...)")
    return run_sweep(name, everything, search, settings, trust_code=trust_code)


def resume(
    run_dir: str | Path,
    began: float | None = None,
    trust_code: bool = False,
    callbacks: Sequence[Callback] = (),
    **changes: Unpack[ResumeOptions],
) -> RunResult:
    """Resume a run from its newest valid checkpoint.

    Args:
        run_dir: directory of the run, or its URL in a store.
        began: time.monotonic() at the start of the program; the run's time counts from there.
        trust_code: run the Python files that config.json names, even if they changed.
        callbacks: as in `train`.
        **changes: budgets and other options that may change.

    Returns:
        The result of the whole run."""
    base = working_directory()
    location = run_location(str(run_dir), base)
    assert location.path is not None
    architecture, options, own = saved_options(location.path, trust_code)
    for name in changes:
        if name not in RESUMABLE:
            raise ConfigurationError(
                f"{name} cannot change when a run is resumed (it is"
                f" {format_value(getattr(options, name, own.get(name)))}); train anew with another"
                " --run-dir"
            )
    options = with_values(options, {**changes, "run_dir": str(run_dir)})
    _check_and_prestart(architecture, vars(options))
    plan = _planned(architecture, options, own, began)
    return _executed(plan, location, callbacks, base, began, resume=True)


def _planned(
    architecture: str,
    options: RunOptions,
    own: dict[str, Any],
    began: float | None,
    weights: FirstWeights | None = None,
) -> Plan:
    """The plan of a run, made within its max_seconds: environments may take long to start."""
    from veldt.run.external import with_declared_spaces
    from veldt.run.plan import make_plan

    def say(text: str) -> None:
        if not options.quiet:
            line = dumps({"event": "note", "text": text}) if options.json else text
            print(line, file=output_stream(), flush=True)

    limit = options.max_seconds
    if limit is not None:
        spent = 0.0 if began is None else time.monotonic() - began
        limit = max(limit + START_SECONDS - spent, _LEAST_PLANNING_SECONDS)
    try:
        with time_limit(limit):
            given = with_declared_spaces(architecture, options, say)
            return make_plan(architecture, given, own, first=weights, began=began)
    except OutOfTime:
        raise ConfigurationError(
            f"max_seconds {options.max_seconds:g} had passed before the network was built and the"
            f" environment '{options.env}' was ready; nothing was trained; raise --max-seconds, or"
            " start fewer runs at a time"
        ) from None


def split_options(options: dict[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """The options of every run, and the architecture's own by name; paths become text."""
    options = {n: str(value) if isinstance(value, Path) else value for n, value in options.items()}
    own = {name: value for name, value in options.items() if name not in _COMMON}
    common = {name: value for name, value in options.items() if name in _COMMON}
    return RunOptions(**common), own


def evaluate(
    run_dir: str | Path,
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
    policy: int | None = None,
    trust_code: bool = False,
    checkpoint: str | int = "best",
    stochastic: bool = False,
    env: str | None = None,
) -> EvaluationResult:
    """Play fresh episodes with a checkpoint of a run.

    Args:
        run_dir: directory of the run, its URL in a store, or zoo:NAME.
        episodes: number of episodes.
        seed: seed of the episodes.
        video: also record one more episode in the run directory.
        policy: index of one of several policies, of the newest checkpoint; the best by default.
        trust_code: as in `resume`.
        checkpoint: "best", "last", or the env steps of a checkpoint that is kept.
        stochastic: draw actions instead of taking the most likely ones.
        env: another environment with the same spaces.

    Returns:
        The returns of the episodes, and their statistics."""
    from veldt.commands.evaluate import evaluate_run

    run = local_run(run_dir, checkpoint)
    return evaluate_run(run, episodes, seed, video, policy, trust_code, checkpoint, stochastic, env)


def load(
    run_dir: str | Path,
    checkpoint: str | int = "best",
    policy: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
) -> TrainedPolicy:
    """Load the policy of a run. The environment need not be installed.

    Args:
        run_dir: directory of the run, its URL in a store, or zoo:NAME.
        checkpoint: as in `evaluate`.
        policy: as in `evaluate`.
        seed: seed of the actions that are drawn with `deterministic=False`.
        trust_code: as in `resume`.

    Returns:
        The policy, whose `act` maps observations to actions.

    >>> policy = load("runs/first")  # doctest: +SKIP
    >>> action = policy.act(observation)  # doctest: +SKIP
    """
    from veldt.policy.trained import loaded

    return loaded(local_run(run_dir, checkpoint), checkpoint, policy, seed, trust_code)


def export(
    run_dir: str | Path,
    out: str | Path,
    format: Literal["onnx", "torch"] = "onnx",
    checkpoint: str | int = "best",
    policy: int | None = None,
    trust_code: bool = False,
    seed: int = 0,
) -> Exported:
    """Write the policy of a run to a file, after checking it on 1,000 random observations.

    Args:
        run_dir: directory of the run, its URL in a store, or zoo:NAME.
        out: path of the file.
        format: "onnx" for ONNX Runtime, "torch" for torch.export.load.
        checkpoint: as in `evaluate`.
        policy: as in `evaluate`.
        trust_code: as in `resume`.
        seed: seed of the random observations.

    Returns:
        What was written, and how it was checked."""
    from veldt import __version__
    from veldt.policy.export import export as export_policy

    loaded = load(run_dir, checkpoint, policy, trust_code=trust_code)
    return export_policy(loaded, format, Path(out), __version__, seed)
