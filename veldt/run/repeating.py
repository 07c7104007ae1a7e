# SPDX-License-Identifier: Apache-2.0
"""The one command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.options import RunOptions
from veldt.options.fields import cli_args, flat, option_fields
from veldt.run.config_files import NOT_REPEATED
from veldt.run.description import choices, describe_plan
from veldt.run.fine_tuning import ORIGIN, origin, recorded_origin
from veldt.run.plan import Plan
from veldt.telemetry.record import CONFIG_FILE
from veldt.telemetry.result import RunResult


def config_of(plan: Plan, command: str | None, run_dir: Path) -> dict[str, Any]:
    """What config.json says: all options, the command and where the first weights came from. A run
    that is resumed has not read them again, and keeps what it said."""
    began_with = origin(plan) or recorded_origin(run_dir)
    return {**describe_plan(plan), "command": command, ORIGIN: began_with}


def first_result(plan: Plan, run_dir: str) -> RunResult:
    """What is known of the outcome before the run."""
    return RunResult(
        plan.architecture,
        plan.problem.environment.name,
        plan.options.backend,
        plan.options.seed,
        run_dir=run_dir,
        chosen=choices(plan),
        command=repeat_command(plan, run_dir),
    )


def repeat_command(plan: Plan, run_dir: str) -> str | None:
    """Quoted for the shell, with what the task and the machine led to spelt out. Where a value
    cannot be written as words the run's config.json is named; None where the run was made from
    Python objects that have no name."""
    options = _options(plan)
    if options is None:
        return None
    common = option_fields(RunOptions)
    changed = {
        name: value
        for name, value in options.items()
        if name == "env" or value != _default(common[name].entry)
    }
    system = architectures.load(plan.architecture)
    preset, own = flat(system.presets[plan.preset]), option_fields(system.config)
    changed |= {name: value for name, value in flat(plan.config).items() if value != preset[name]}
    known = {**common, **own}
    arguments = [cli_args(known[name], value) for name, value in changed.items()]
    if None in arguments:
        return shlex.join(["veldt", "train", "--config", f"{run_dir}/{CONFIG_FILE}"])
    flags = [word for part in arguments for word in part or ()]
    return shlex.join(["veldt", "train", plan.architecture, *flags])


def _options(plan: Plan) -> dict[str, Any] | None:
    """The common options that matter, with the sizes and the preset that were chosen."""
    options = {name: v for name, v in flat(plan.options).items() if name not in NOT_REPEATED}
    for name in ("env", "network"):
        if callable(options[name]):
            named = _importable(options[name])
            if named is None:
                return None
            options[name] = named
    return {
        **options,
        "preset": plan.preset,
        "num_actors": plan.problem.num_actors,
        "envs_per_actor": plan.problem.envs_per_actor,
    }


def _importable(function: Callable[..., object]) -> str | None:
    """module:function, if importing that gives the same again."""
    module = getattr(function, "__module__", "__main__")
    name = getattr(function, "__qualname__", "<no name>")
    return None if module == "__main__" or "<" in name else f"{module}:{name}"


def _default(entry: Any) -> Any:
    return entry.default_factory() if callable(entry.default_factory) else entry.default
