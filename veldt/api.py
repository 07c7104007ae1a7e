# SPDX-License-Identifier: Apache-2.0
"""The Python interface: the same runs as the command line's, with the same results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from veldt.architectures import modules_of
from veldt.backends import BACKENDS, prestart
from veldt.callbacks import Callback
from veldt.dashboard.child import check_installed
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import with_values
from veldt.options.text import format_value
from veldt.run import output
from veldt.run.changing import MAY_CHANGE
from veldt.run.config_files import read_config, with_config
from veldt.run.main_guard import check_main_is_guarded
from veldt.run.saved_options import saved_options
from veldt.telemetry.result import RunResult, dumps
from veldt.trackers.child import check_trackers

if TYPE_CHECKING:
    from veldt.networks import FirstWeights
    from veldt.policy import TrainedPolicy
    from veldt.policy.export import Exported
    from veldt.run.evaluation import EvaluationResult
    from veldt.sweeps.report import SweepResult

_PLANNING_SECONDS = 5.0  # what a run of any length may take to be planned
_COMMON = {entry.name for entry in fields(RunOptions)}


def train(
    architecture: str | None = None,
    env: str | Callable[..., object] | None = None,
    callbacks: Sequence[Callback] = (),
    config: str | Path | None = None,
    trust_code: bool = False,
    **options: object,
) -> RunResult:
    """Train `architecture` on `env`; options by name, the common ones and the architecture's own.
    `callbacks` hear of the run while it goes on, and can end it. `config`: a file with options, or
    config.json of a run, for what is not given here. `trust_code` as in resume, for that file and
    for `from_run`.

    >>> result = train("impala", env="CartPole-v1", target_return=475)  # doctest: +SKIP
    """
    given = options if env is None else {"env": env, **options}
    file = None if config is None else read_config(config, trust_code)
    name, everything = with_config(architecture, {"quiet": True, **given}, file)
    return train_from(name, everything, None, callbacks, trust_code)


def train_from(
    architecture: str,
    options: dict[str, Any],
    began: float | None = None,
    callbacks: Sequence[Callback] = (),
    trust_code: bool = False,
) -> RunResult:
    """Train with all options in one mapping; `began` is when the process started."""
    if "env" not in options:
        raise ConfigurationError(f"name an environment: veldt train {architecture} --env ID")
    if options.get("dashboard", False) is not False:
        check_installed()
    check_trackers(options.get("trackers", ()))
    backend = str(options.get("backend", "process"))
    if backend in BACKENDS and BACKENDS[backend].starts_processes:
        check_main_is_guarded()
    # The fork server imports torch while this process does.
    prestart(backend, modules_of(architecture))

    from veldt.run import home as homes
    from veldt.run.driver import Run
    from veldt.run.fine_tuning import first_weights

    common, own = split_options(options)
    base = Path.cwd()  # an environment may change it, even while it is tried
    home = homes.home_of(common.run_dir, base)
    stored = homes.run_to_resume(home)
    weights = first_weights(common, trust_code) if stored is None else None
    if stored is not None:
        plan = _planned(architecture, homes.with_sizes_of(common, stored), own, began)
        homes.check_same(home, plan, stored)
        if result := homes.finished(home, plan, stored):
            ended = result  # what a store lacks of it is uploaded
            return home.keeping(common, (), lambda _: homes.shown(plan, ended))
    else:
        plan = _planned(architecture, common, own, began, weights)

    def execute(callbacks: Sequence[Callback]) -> RunResult:
        resuming = stored is not None
        return Run(plan, began, resume=resuming, base=base, callbacks=callbacks).execute()

    return home.keeping(common, callbacks, execute)


def sweep(
    architecture: str | None = None,
    env: str | None = None,
    search: Sequence[str] = (),
    config: str | Path | None = None,
    trust_code: bool = False,
    **options: Any,
) -> SweepResult:
    """Search options: `search` has words such as "learning_rate=1e-5..1e-1:log". Options by name:
    `trials`, `parallel`, `pruner`, `startup_trials`, `out`, and those of every run. A sweep whose
    folder exists goes on. `config` and `trust_code` as in train.

    >>> words = ["learning_rate=1e-5..1e-1:log"]
    >>> result = sweep("impala", "CartPole-v1", words, max_seconds=20)  # doctest: +SKIP
    """
    from veldt.sweeps.command import sweep as run_sweep
    from veldt.sweeps.options import take_sweep_options

    settings = take_sweep_options(options)
    file = None if config is None else read_config(config, trust_code)
    given = options if env is None else {"env": env, **options}
    name, everything = with_config(architecture, given, file)
    if "env" not in everything:
        raise ConfigurationError(f"name an environment: sweep({name!r}, env=...)")
    return run_sweep(name, everything, search, settings, trust_code=trust_code)


def resume(
    run_dir: str | Path,
    began: float | None = None,
    trust_code: bool = False,
    callbacks: Sequence[Callback] = (),
    **changes: object,
) -> RunResult:
    """Go on with a run from its newest valid checkpoint; budgets may change, nothing else.
    `run_dir`: a directory, or the URL of a run that lives in a store, as everywhere here.
    `trust_code`: run the Python files that config.json names even if they have changed.
    `callbacks` as in train."""
    from veldt.run import home as homes

    base = Path.cwd()
    home = homes.home_of(str(run_dir), base)
    assert home.path is not None
    architecture, options, own = saved_options(home.path, trust_code)
    for name in changes:
        if name not in MAY_CHANGE:
            raise ConfigurationError(
                f"{name} cannot change when a run is resumed (it is"
                f" {format_value(getattr(options, name, own.get(name)))}); train anew with another"
                " --run-dir"
            )
    options = with_values(options, {**changes, "run_dir": str(run_dir)})
    if options.dashboard is not False:
        check_installed()
    check_trackers(options.trackers)
    if BACKENDS[options.backend].starts_processes:
        check_main_is_guarded()
    prestart(options.backend, modules_of(architecture))
    from veldt.run.driver import Run

    plan = _planned(architecture, options, own, began)
    return home.keeping(
        options,
        callbacks,
        lambda all: Run(plan, began, resume=True, base=base, callbacks=all).execute(),
    )


def _planned(
    architecture: str,
    options: RunOptions,
    own: dict[str, Any],
    began: float | None,
    weights: FirstWeights | None = None,
) -> Any:
    """The plan of a run, within the run's own time: an environment may take long to be made."""
    from veldt.run.external import declared
    from veldt.run.plan import make_plan
    from veldt.run.signals import OutOfTime, time_limit

    def say(text: str) -> None:
        if not options.quiet:
            line = dumps({"event": "note", "text": text}) if options.json else text
            print(line, file=output.stream(), flush=True)

    limit = options.max_seconds
    if limit is not None:
        spent = 0.0 if began is None else time.monotonic() - began
        limit = max(limit - spent, _PLANNING_SECONDS)
    try:
        with time_limit(limit):
            given = declared(architecture, options, say)
            return make_plan(architecture, given, own, first=weights)
    except OutOfTime:
        raise ConfigurationError(
            f"max_seconds {options.max_seconds:g} were over before the network was built and the"
            f" environment '{options.env}' made, reset and stepped once, or a client for it came;"
            " nothing was trained"
        ) from None


def split_options(options: dict[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """The common options, and the architecture's own fields by name."""
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
    checkpoint: str | int = "last",
    stochastic: bool = False,
    env: str | None = None,
) -> EvaluationResult:
    """Play `episodes` fresh episodes with a checkpoint of a run; their returns. `checkpoint`:
    "last", "best" or the env steps of one that is kept. `policy`: one of several that were trained
    side by side; without it, the best. `stochastic`: draw actions instead of taking the likeliest.
    `env`: play another environment of the same spaces. `trust_code` as in resume."""
    from veldt.run.evaluation import evaluate_run
    from veldt.run.home import local_run

    run = local_run(run_dir, checkpoint)
    return evaluate_run(
        run,
        episodes,
        seed,
        video,
        policy,
        trust_code,
        checkpoint,
        stochastic,
        env,
    )


def load(
    run_dir: str | Path,
    checkpoint: str | int = "best",
    policy: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
) -> TrainedPolicy:
    """The policy of a run, to act with. `checkpoint` and `policy` as in evaluate; `seed` fixes what
    is drawn with `deterministic=False`. The environment need not be installed.

    >>> policy = load("runs/first")  # doctest: +SKIP
    >>> action = policy.act(observation)  # doctest: +SKIP
    """
    from veldt.run.home import local_run
    from veldt.run.loading import loaded

    return loaded(local_run(run_dir, checkpoint), checkpoint, policy, seed, trust_code)


def export(
    run_dir: str | Path,
    out: str | Path,
    format: Literal["onnx", "torch"] = "onnx",
    checkpoint: str | int = "best",
    policy: int | None = None,
    trust_code: bool = False,
) -> Exported:
    """Write the policy of a run to `out`, for ONNX Runtime or torch.export.load, once it is proved
    to act as the policy does on 1,000 observations."""
    from veldt import __version__
    from veldt.run.exporting import export_run
    from veldt.run.home import local_run

    run = local_run(run_dir, checkpoint)
    return export_run(run, format, Path(out), __version__, checkpoint, policy, trust_code)
