# SPDX-License-Identifier: Apache-2.0
"""The command line: every command of COMMANDS, each with its own options.

Nothing heavy is imported before it is needed, and while this process imports torch the fork server
does the same on another core.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import veldt
from veldt import architectures
from veldt.api import evaluate, export, resume, split_options, train_from
from veldt.architectures import ARCHITECTURES
from veldt.backends import prestart
from veldt.cli.help import all_wanted
from veldt.cli.options import Parser, unknown_option
from veldt.cli.parsers import PARSERS, common_parser, resume_parser, run_parser
from veldt.errors import ConfigurationError, UploadFailure, did_you_mean
from veldt.remote.places import is_remote
from veldt.run import output
from veldt.run.config_files import read_config, with_config
from veldt.run.signals import Terminated, process_start
from veldt.run.trust import FLAG
from veldt.sweeps.options import take_sweep_options
from veldt.telemetry.result import dumps

EXIT_FAILURE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
_HELP = ("-h", "--help")
_TRACE_LINES = 40


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code. Without `arguments`, this process is the command."""
    # A program's run begins when the program did: importing Python is part of the wait.
    began = process_start() if arguments is None else time.monotonic()
    if arguments is None:
        arguments = sys.argv[1:]
        _prepare_process(arguments)
    try:
        return _dispatch(arguments, began)
    except ConfigurationError as error:
        return _complain(" ".join(str(error).split()), EXIT_BAD_INPUT)
    except Terminated:
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: veldt list | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def _prepare_process(arguments: list[str]) -> None:
    """What is changed for the whole process, which is nobody else's."""
    command = arguments[0] if arguments else ""
    answers = ("train", "sweep", "resume", "evaluate", "serve")
    if command in answers and "--json" in arguments:
        output.reserve()


def _dispatch(arguments: list[str], began: float) -> int:
    if not arguments:
        raise ConfigurationError(f"choose a command: {', '.join(COMMANDS)}; see veldt --help")
    name, rest = arguments[0], arguments[1:]
    if name in _HELP:
        return _say(_overview())
    if name == "--version":
        return _say(f"veldt {veldt.__version__}")
    if name not in COMMANDS:
        if name.startswith("-"):
            raise ConfigurationError(unknown_option(name, ("--help", "--version"), "veldt"))
        hint = did_you_mean(name, COMMANDS)
        raise ConfigurationError(f"unknown command '{name}'; {hint}")
    return COMMANDS[name](rest, began)


def _list(arguments: list[str], began: float) -> int:
    """the architectures: year, paper, what is new"""
    rows = list(ARCHITECTURES.values())
    if PARSERS["list"]().parse(arguments)["json"]:
        return _say(dumps([{**asdict(row), "file": row.file} for row in rows]))
    width = max(len(row.name) for row in rows)
    for row in rows:
        _say(f"{row.name:<{width}}  {row.year}  {row.new}")
        _say(f"{'':<{width}}        {row.paper}")
    return 0


def _describe(arguments: list[str], began: float) -> int:
    """the wiring of an architecture, from the real topology"""
    name, given = _options_of("describe", arguments)
    format = given.pop("format")
    from veldt.run.plan import make_plan

    plan = make_plan(name, *split_options({"env": architectures.example_env(name), **given}))
    return _say(plan.topology.describe(format))


def _train(arguments: list[str], began: float) -> int:
    """train an architecture on an environment"""
    name, options, trust_code = _training_options("train", arguments)
    return _finish(lambda: train_from(name, options, began, trust_code=trust_code))


def _sweep(arguments: list[str], began: float) -> int:
    """search options over many runs; bad ones are ended early"""
    name, options, trust_code = _training_options("sweep", arguments)
    as_json, quiet = options.pop("json", False), options.pop("quiet", False)
    search = options.pop("search", [])
    settings = take_sweep_options(options)
    from veldt.sweeps.command import plain, sweep

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr if as_json else output.stream(), flush=True)

    result = sweep(name, options, search, settings, say, trust_code)
    _say(dumps(plain(result)) if as_json else result.text())
    return EXIT_FAILURE if result.best is None else 0


def _resume(arguments: list[str], began: float) -> int:
    """go on with a run from its newest checkpoint; budgets may change"""
    run_dir = next((word for word in arguments if not word.startswith("-")), None)
    if set(arguments) & set(_HELP):
        run_dir = None
    if is_remote(run_dir):
        from veldt.run.home import local_run

        known: str | None = str(local_run(str(run_dir)))
    else:
        known = run_dir
    changes = resume_parser(known, FLAG in arguments).parse(arguments)
    path = changes.pop("run")
    return _finish(lambda: resume(path, began, **changes))


def _finish(run: Callable[[], object]) -> int:
    """Train to the end; the exit code."""
    from veldt.backends.base import NodeFailure

    gc.freeze()  # imports are done, and what they made stays
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


def _evaluate(arguments: list[str], began: float) -> int:
    """play fresh episodes with a checkpoint of a run"""
    given = PARSERS["evaluate"]().parse(arguments)
    as_json = given.pop("json")
    result = evaluate(**given)
    return _say(dumps(vars(result)) if as_json else result.text())


def _exploit(arguments: list[str], began: float) -> int:
    """train a fresh exploiter against a run's frozen main player"""
    given = PARSERS["exploit"]().parse(arguments)
    as_json = given.pop("json")
    from veldt.run.exploit import exploit_run
    from veldt.run.home import local_run

    result = exploit_run(local_run(given.pop("run_dir"), "last"), **given)
    return _say(dumps(vars(result)) if as_json else result.text())


def _play(arguments: list[str], began: float) -> int:
    """play a game against a model of a run, in the terminal"""
    given = PARSERS["play"]().parse(arguments)
    from veldt.run.home import local_run
    from veldt.run.play import play_run

    play_run(local_run(given.pop("run_dir"), given["checkpoint"]), **given)
    return 0


def _export(arguments: list[str], began: float) -> int:
    """write the policy of a run as ONNX or for torch, with a proof that it acts alike"""
    given = PARSERS["export"]().parse(arguments)
    return _say(export(**given).text())


def _serve(arguments: list[str], began: float) -> int:
    """answer the observations of simulators with the policy of a run, over gRPC"""
    given = PARSERS["serve"]().parse(arguments)
    from veldt.run.home import local_run
    from veldt.run.serving import serve_run

    return serve_run(local_run(given.pop("run_dir"), given["checkpoint"]), **given)


def _watch(arguments: list[str], began: float) -> int:
    """a live page of a run that goes on or has ended"""
    given = PARSERS["watch"]().parse(arguments)
    from veldt.dashboard.command import watch

    return watch(**given)


def _compare(arguments: list[str], began: float) -> int:
    """several architectures and seeds under one budget, with a report"""
    given = PARSERS["compare"]().parse(arguments)
    from veldt.compare.settings import Comparison

    comparison = Comparison(**given)
    from veldt.compare.command import compare

    return compare(comparison)


def _plan(arguments: list[str], began: float) -> int:
    """what an architecture would do with other numbers of actors and cores"""
    given = PARSERS["plan"]().parse(arguments)
    name = given.pop("architecture")
    architectures.check(name)
    from veldt.planner.command import PlanOptions, plan

    return plan(name, PlanOptions(**given))


def _completion(arguments: list[str], began: float) -> int:
    """a completion script for bash, zsh or fish"""
    shell = PARSERS["completion"]().parse(arguments)["shell"]
    from veldt.cli.completion import script

    return _say(script(shell, {name: run.__doc__ or "" for name, run in COMMANDS.items()}))


COMMANDS: dict[str, Callable[[list[str], float], int]] = {
    "list": _list,
    "describe": _describe,
    "train": _train,
    "sweep": _sweep,
    "resume": _resume,
    "evaluate": _evaluate,
    "exploit": _exploit,
    "play": _play,
    "export": _export,
    "serve": _serve,
    "watch": _watch,
    "compare": _compare,
    "plan": _plan,
    "completion": _completion,
}


def _training_options(command: str, arguments: list[str]) -> tuple[str, dict[str, Any], bool]:
    """The architecture, all options, those of a file among them, and whether code is trusted."""
    config = _config_in(arguments)
    file = None if config is None else read_config(config, FLAG in arguments)
    if file is not None and file.architecture and _architecture_in(arguments) is None:
        arguments = [file.architecture, *arguments]
    name, given = _options_of(command, arguments, {} if file is None else file.options)
    given.pop("config", None)
    trust_code = given.pop("trust_code", False)
    name, options = with_config(name, given, file)
    return name, options, trust_code


def _config_in(arguments: list[str]) -> str | None:
    """The file after --config, before the architecture and its options are known."""
    parser = Parser("veldt", add_help=False)
    parser.add_argument("--config")
    given, _ = parser.parse_known_args(arguments)
    found: str | None = given.config
    return found


def _options_of(
    command: str, arguments: list[str], written: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, dict[str, Any]]:
    """The architecture and the options of a command that has those of `train`. What needs no torch
    is checked first, and answered at once. `written`: what a file says."""
    wants_help = bool({word.partition("=")[0] for word in arguments} & set(_HELP))
    name = _architecture_in(arguments)
    if name is None and not wants_help:
        raise ConfigurationError(f"name an architecture: veldt {command} {'|'.join(ARCHITECTURES)}")
    if name is None or not wants_help:
        parser = common_parser(command, show_all=all_wanted(arguments))
        known, _ = parser.parse_known_args(arguments)
        common = {**written, **vars(known)}
        if command != "describe" and "env" not in common:
            example = architectures.example_env(name or "")
            raise ConfigurationError(f"name an environment with --env, such as --env {example}")
        if command == "train":
            prestart(common.get("backend", "process"), architectures.modules_of(name))
    assert name is not None  # help without one has been printed
    given = run_parser(command, name, all_wanted(arguments)).parse(arguments)
    del given["architecture"]
    return name, given


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
    print(text, file=output.stream(), flush=True)
    return 0


def _complain(text: str, code: int) -> int:
    print(f"veldt: {text}", file=sys.stderr)
    return code
