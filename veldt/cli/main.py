# SPDX-License-Identifier: Apache-2.0
"""The command line: COMMANDS, each with its own options.

Heavy modules are imported where they are needed. While this process imports torch, the fork server
does the same on another core.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import veldt
from veldt import architectures
from veldt.api import evaluate, export, resume, split_options, train_from
from veldt.architectures import ARCHITECTURES
from veldt.backends import prestart
from veldt.cli.parsers import (
    HELP,
    command_parser,
    common_parser,
    resume_parser,
    run_parser,
)
from veldt.errors import ConfigurationError, UploadFailure, did_you_mean, extra_module
from veldt.options.fields import format_value
from veldt.remote.location import follow_run, local_run
from veldt.run.config_files import LIMITS, TRUST_FLAG, read_config, with_config
from veldt.run.process import (
    Terminated,
    output_stream,
    process_start,
    reserve_stdout,
    working_directory,
)
from veldt.telemetry.result import dumps

EXIT_FAILURE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
_TRACE_LINES = 40
_PRINT_RESULTS = ("train", "sweep", "resume", "evaluate", "serve")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Without `arguments`, those of this process."""
    # The run's time starts with the process, so that imports are part of it.
    began = process_start() if arguments is None else time.monotonic()
    if arguments is None:
        arguments = sys.argv[1:]
        if arguments[:1] and arguments[0] in _PRINT_RESULTS and "--json" in arguments:
            reserve_stdout()
    try:
        return _dispatch(arguments, began)
    except ConfigurationError as error:
        return _complain(" ".join(str(error).split()), EXIT_BAD_INPUT)
    except Terminated:
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has exited: veldt list | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def _dispatch(arguments: list[str], began: float) -> int:
    if not arguments:
        raise ConfigurationError(f"choose a command: {', '.join(COMMANDS)}; see veldt --help")
    name, rest = arguments[0], arguments[1:]
    if name in HELP:
        return _say(_overview())
    if name == "--version":
        return _say(f"veldt {veldt.__version__}")
    working_directory()  # without one MKL ends the process with an error of its own
    if name in _NEED_ARGUMENTS:
        return COMMANDS[name](rest, began)
    if name in COMMANDS:
        run = COMMANDS[name]
        return run(command_parser(name, run.__doc__ or "").parse(rest))
    if name.startswith("-"):
        remedy = did_you_mean(name, ("--help", "--version"), "see veldt --help")
        raise ConfigurationError(f"unknown option '{name}'; {remedy}")
    raise ConfigurationError(f"unknown command '{name}'; {did_you_mean(name, COMMANDS)}")


def _list(given: dict[str, Any]) -> int:
    """the architectures: year, paper, what is new"""
    rows = list(ARCHITECTURES.values())
    if given["json"]:
        return _say(dumps([{**asdict(row), "file": row.file} for row in rows]))
    width = max(len(row.name) for row in rows)
    for row in rows:
        _say(f"{row.name:<{width}}  {row.year}  {row.new}")
        _say(f"{'':<{width}}        {row.paper}")
    return 0


def _envs(given: dict[str, Any]) -> int:
    """ids of environments that are installed here"""
    from veldt.commands.envs import OTHERS, env_ids

    found = env_ids(given["text"])
    return _say(dumps(found) if given["json"] else "\n".join([*found, OTHERS]))


def _runs(given: dict[str, Any]) -> int:
    """the runs in a folder: state, env steps, score"""
    from veldt.dashboard.overview import summaries, table

    found = summaries(Path(given["folder"]))
    return _say(dumps(found) if given["json"] else table(found))


def _zoo(given: dict[str, Any]) -> int:
    """trained policies that come with Veldt, for any command that reads a run"""
    from veldt.zoo import cards, listed

    return _say(dumps(cards()) if given["json"] else listed())


def _info(given: dict[str, Any]) -> int:
    """what a run is, where it stands, its checkpoints, its result"""
    from veldt.dashboard.overview import about, summaries

    run = local_run(given["run_dir"])
    return _say(dumps(summaries(run)[0]) if given["json"] else about(run))


def _describe(arguments: list[str], began: float) -> int:
    """the wiring of an architecture, from the real topology"""
    name, given, _ = _options_of("describe", arguments)
    format = given.pop("format")
    from veldt.run.plan import make_plan

    plan = make_plan(name, *split_options({"env": architectures.example_env(name), **given}))
    return _say(plan.topology.describe(format))


def _train(arguments: list[str], began: float) -> int:
    """train an architecture on an environment"""
    name, options, trust_code = _options_of("train", arguments)
    if not options.pop("dry_run", False):
        return _finish(lambda: train_from(name, options, began, trust_code=trust_code))
    from veldt.run.description import choices_line
    from veldt.run.plan import make_plan

    plan = make_plan(name, *split_options(options))
    known = vars(plan.options)
    limits = [f"{n} {format_value(known[n])}" for n in LIMITS if known[n] is not None]
    _say(f"{choices_line(plan)}\nends at {' or '.join(limits)}; nothing was started")
    return _say(plan.topology.describe("text"))


def _sweep(arguments: list[str], began: float) -> int:
    """search options over many runs; bad ones are ended early"""
    from veldt.sweeps.command import sweep
    from veldt.sweeps.search import take_sweep_options

    name, options, trust_code = _options_of("sweep", arguments)
    as_json, quiet = options.pop("json", False), options.pop("quiet", False)
    search = options.pop("search", [])
    settings = take_sweep_options(options)

    def log(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr if as_json else output_stream(), flush=True)

    result = sweep(name, options, search, settings, log, trust_code)
    _say(dumps(asdict(result)) if as_json else result.text())
    return EXIT_FAILURE if result.best is None else 0


def _resume(arguments: list[str], began: float) -> int:
    """continue a run from its newest checkpoint; budgets may change"""
    changes = resume_parser().parse(arguments)
    path = changes.pop("run")
    return _finish(lambda: resume(path, began, **changes))


def _finish(run: Callable[[], object]) -> int:
    """Call `run`; returns the exit code."""
    from veldt.backends.base import NodeFailure

    gc.freeze()  # objects made by imports are never garbage
    gc.enable()
    try:
        run()
    except NodeFailure as failure:
        for line in failure.trace.strip().splitlines()[-_TRACE_LINES:]:
            print(line, file=sys.stderr)
        return _complain(str(failure), EXIT_FAILURE)
    except UploadFailure as failure:
        return _complain(str(failure), EXIT_FAILURE)
    return 0


def _evaluate(given: dict[str, Any]) -> int:
    """play fresh episodes with a checkpoint of a run"""
    as_json, result = given.pop("json"), evaluate(**given)
    return _say(dumps(vars(result)) if as_json else result.text())


def _play(given: dict[str, Any]) -> int:
    """play a game against a model of a run, in the terminal"""
    from veldt.commands.play import play_run

    play_run(local_run(given.pop("run_dir"), given["checkpoint"]), **given)
    return 0


def _export(given: dict[str, Any]) -> int:
    """write the policy of a run as ONNX or for torch, with a proof that it acts alike"""
    return _say(export(**given).text())


def _serve(given: dict[str, Any]) -> int:
    """answer the observations of simulators with the policy of a run, over gRPC"""
    from veldt.commands.serve import serve_run

    return serve_run(local_run(given.pop("run_dir"), given["checkpoint"]), **given)


def _watch(given: dict[str, Any]) -> int:
    """a live page of a run, running or ended"""
    from veldt.dashboard.child import check_installed, watch

    check_installed()
    given["run_dir"] = str(follow_run(given["run_dir"]))
    return watch(**given)


def _compare(given: dict[str, Any]) -> int:
    """several architectures and seeds under one budget, with a report"""
    from veldt.compare.runs import Comparison, compare

    def options_of(contestant: str) -> dict[str, Any]:
        architecture, *words = shlex.split(contestant)
        own = run_parser("train", architecture).parse([architecture, *words])
        return {name: value for name, value in own.items() if name != "architecture"}

    runs = tuple(str(local_run(run_dir)) for run_dir in given.pop("runs", ()))
    return compare(Comparison(**given, runs=runs), options_of)


def _plot(given: dict[str, Any]) -> int:
    """learning curves of runs that exist, with intervals over seeds"""
    for library in ("matplotlib", "jinja2"):
        extra_module(library, f"veldt plot draws with {library}", extra="plots")
    from veldt.compare.report import plot

    runs = [str(local_run(run_dir)) for run_dir in given["run_dirs"]]
    return _say(plot(runs, Path(given["out"])))


def _plan(given: dict[str, Any]) -> int:
    """what an architecture would do with other numbers of actors and cores"""
    from veldt.planner.command import PlanOptions, plan

    name = given.pop("architecture")
    architectures.check(name)
    return plan(name, PlanOptions(**given))


COMMANDS: dict[str, Callable[..., int]] = {
    "list": _list,
    "envs": _envs,
    "describe": _describe,
    "train": _train,
    "sweep": _sweep,
    "resume": _resume,
    "runs": _runs,
    "info": _info,
    "zoo": _zoo,
    "evaluate": _evaluate,
    "play": _play,
    "export": _export,
    "serve": _serve,
    "watch": _watch,
    "compare": _compare,
    "plot": _plot,
    "plan": _plan,
}
"""Those of _NEED_ARGUMENTS take them and the time of the start, the others their parsed options."""
_NEED_ARGUMENTS = ("describe", "train", "sweep", "resume")


def _options_of(command: str, arguments: list[str]) -> tuple[str, dict[str, Any], bool]:
    """The architecture, all options with those of a file, and whether code is trusted.

    What needs no torch is checked before torch is imported."""
    name = _architecture_in(arguments)
    if {each.partition("=")[0] for each in arguments} & set(HELP):
        show_all = re.search(r"(-h|--help)[ =]all\b", " ".join(arguments)) is not None
        (run_parser if name else common_parser)(command, name or "ARCH", show_all).print_help()
        raise SystemExit(0)
    known = vars(common_parser(command).parse_known_args(arguments)[0])
    file = read_config(known["config"], TRUST_FLAG in arguments) if "config" in known else None
    if name is None and file is not None and file.architecture is not None:
        name, arguments = file.architecture, [file.architecture, *arguments]
    if name is None:
        raise ConfigurationError(f"name an architecture: veldt {command} {'|'.join(ARCHITECTURES)}")
    common = known if file is None else {**file.options, **known}
    if command != "describe" and "env" not in common:
        example = architectures.example_env(name)
        raise ConfigurationError(f"name an environment with --env, such as --env {example}")
    if command == "train":
        prestart(common.get("backend", "process"), architectures.modules_of(name))
    given = run_parser(command, name).parse(arguments)
    trust_code = given.pop("trust_code", False)
    own = {n: value for n, value in given.items() if n not in ("architecture", "config")}
    return *with_config(name, own, file), trust_code


def _architecture_in(arguments: list[str]) -> str | None:
    """The architecture among the arguments of a command: the first one, or any that is known."""
    if arguments and not arguments[0].startswith("-"):
        architectures.check(arguments[0])
        return arguments[0]
    return next((argument for argument in arguments if argument in ARCHITECTURES), None)


def _overview() -> str:
    commands = "\n".join(f"  {name:<12}{run.__doc__}" for name, run in COMMANDS.items())
    return (
        "usage: veldt COMMAND ...\n\n"
        "Distributed reinforcement learning, one short file per architecture.\n\n"
        f"{commands}\n\n"
        "  veldt train impala --env CartPole-v1 --target-return 475\n"
        "  veldt COMMAND --help shows the options of a command; veldt train ARCH --help those\n"
        "  that people use, and --help all every one."
    )


def _say(text: str) -> int:
    print(text, file=output_stream(), flush=True)
    return 0


def _complain(text: str, code: int) -> int:
    print(f"veldt: {text}", file=sys.stderr)
    return code
