# SPDX-License-Identifier: Apache-2.0
"""The parser of every command; the source of help, error messages and shell completion.

Options of runs are made from dataclass fields: name, type, default and the text under a field.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from veldt import architectures
from veldt.architectures import ARCHITECTURES
from veldt.errors import ConfigurationError
from veldt.options import RunOptions, old_spellings
from veldt.options.checked import is_keyed
from veldt.options.fields import OptionField, flat, format_value, option_fields, reader
from veldt.options.fields import whole_number as whole
from veldt.run.config_files import RESUMABLE, TRUST_FLAG, saved_options

SHELLS = ("bash", "zsh", "fish")
HELP = ("-h", "--help")
USUAL = {
    *("env", "backend", "seed", "run_dir", "total_env_steps", "max_seconds", "target_return"),
    *("num_actors", "envs_per_actor", "device", "preset", "network", "recurrent", "dashboard"),
    *("network_options", "wrappers", "quiet"),
}
"""Common options that `--help` shows; `--help all` shows every one."""
USUAL_OWN = {
    *("learning_rate", "gamma", "entropy_coefficient", "trajectory_steps"),
    *("batch_size", "batch_trajectories", "num_learners", "matchmaking"),
}
"""Options of an architecture that `--help` shows."""
COMMON_GROUPS = {
    "what to run, and for how long": (
        *("env", "env_options", "preset", "seed", "total_env_steps", "max_seconds"),
        *("target_return", "evaluation_episodes", "wrappers"),
    ),
    "where it runs": (*("backend", "device", "num_actors", "envs_per_actor"),),
    "network": (*("network", "network_options", "recurrent", "from_run"),),
    "results": (
        *("run_dir", "dashboard", "trackers", "timeline", "quiet", "json", "checkpoint_options"),
    ),
    "experiments": ("extra_lag",),
}
"""Headings of `--help all`."""
_TRUST = "run Python files that config.json names, also if they have changed since"
_USAGE = {
    "describe": "[--env ID] [--format text|mermaid] [options]",
    "sweep": "--env ID --search NAME=VALUES ... [options]",
    "train": "--env ID [options]",
}


class Parser(argparse.ArgumentParser):
    """Raises ConfigurationError instead of printing a usage text, and suggests near matches."""

    def __init__(self, prog: str, description: str = "", add_help: bool = True) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            add_help=add_help,
            formatter_class=lambda prog: argparse.HelpFormatter(
                prog, max_help_position=32, width=96
            ),
        )
        self.moved: Mapping[str, str] = {}
        """Options of earlier versions, and what to use instead."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise ConfigurationError(f"{message}; see {self.prog.split(' {')[0]} --help")

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """The options that were given; raises ConfigurationError for unknown ones."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0].removeprefix("--").replace("-", "_")
            if name in self.moved:
                raise ConfigurationError(self.moved[name])
            known = [text for action in self._actions for text in action.option_strings]
            raise ConfigurationError(unknown_option(unknown[0], known, self.prog))
        return vars(given)


def unknown_option(given: str, known: Collection[str], program: str) -> str:
    name = given.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected '{given}'; see {program} --help"
    return old_spellings.unknown_option(name.replace("_", "-"), known, f"see {program} --help")


def add_fields(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    config: type,
    presets: Mapping[str, object] | None = None,
    required: bool = True,
    only: Collection[str] | None = None,
    shown: Collection[str] | None = None,
) -> None:
    """Add one flag per field, also of nested groups. Options that are not given are not parsed.

    Args:
        parser: a parser or one of its groups.
        config: the dataclass.
        presets: instances by name, whose values the help shows as defaults.
        required: whether fields without a default must be given.
        only: names of the fields to add; all by default.
        shown: names of those that the help mentions; all by default."""
    values = {name: flat(preset) for name, preset in (presets or {}).items()}
    for name, option in option_fields(config).items():
        if only is not None and name not in only:
            continue
        default = _default_text(option, {preset: own[name] for preset, own in values.items()})
        text = f"{option.text} [{default}]" if default else option.text
        if is_keyed(option.kind):
            text = f"{option.text} Keys: {_keys_text(option, is_full=shown is None)}."
        has_default = (option.entry.default, option.entry.default_factory) != (MISSING, MISSING)
        settings: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": text.replace("%", "%%"),
            "required": required and not has_default,
        }
        if shown is not None and name not in shown:
            settings["help"] = argparse.SUPPRESS
        if option.kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["type"], settings["metavar"] = reader(option.kind)
            if get_origin(option.kind) is Literal:
                settings["choices"] = get_args(option.kind)
            if bool in get_args(option.kind):  # a switch that can also have a value
                settings |= {"nargs": "?", "const": True}
        parser.add_argument(option.flag, **settings)


def _keys_text(option: OptionField, is_full: bool) -> str:
    """The keys of an option, with their help and defaults where all options are shown."""
    keys = option_fields(option.kind)
    if not is_full:
        return ", ".join(keys)
    texts = []
    for name, key in keys.items():
        default = _default_text(key, {}).replace(",", "x")
        texts.append(f"{name}: {key.text}" + (f" [{default}]" if default else ""))
    return "; ".join(texts)


def _default_text(option: OptionField, presets: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        return ("off", "on")[value] if isinstance(value, bool) else format_value(value)

    values = {name: shown(value) for name, value in presets.items()}
    if len(set(values.values())) > 1:
        return ", ".join(f"{name}: {value}" for name, value in values.items())
    if values:
        return next(iter(values.values()))
    # Without a default, the text under the field says what happens then.
    return "" if option.entry.default in (MISSING, None) else shown(option.entry.default)


class HelpAction(argparse.Action):
    """`--help` or `--help all`; which options are shown is decided when the parser is made."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        text = "show the options people use, or all of them"
        super().__init__(
            option_strings, dest, nargs="?", metavar="all", default=argparse.SUPPRESS, help=text
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.print_help()
        parser.exit()


def wants_all_options(arguments: list[str]) -> bool:
    """Whether the arguments contain `--help all`."""
    pairs = pairwise(arguments)
    return "--help=all" in arguments or any(
        flag in HELP and value == "all" for flag, value in pairs
    )


def common_parser(command: str, name: str = "ARCH", show_all: bool = False) -> Parser:
    """The options of train, sweep or describe that every architecture has."""
    is_one = name != "ARCH"
    description = architectures.summary(name) if is_one else f"ARCH: {', '.join(ARCHITECTURES)}"
    parser = Parser(f"veldt {command} {name}", description, add_help=False)
    parser.usage = f"veldt {command} {name} {_USAGE[command]}"
    text = "an architecture, or the path of one's file"
    parser.add_argument("architecture", nargs="?", metavar="ARCH", help=text)
    parser.add_argument(*HELP, action=HelpAction)
    _add_common_options(parser, command, show_all)
    if not show_all:
        text = "These are the options people use. {} --help all shows every option, by group."
        parser.epilog = text.format(parser.prog)
    return parser


def run_parser(command: str, name: str, show_all: bool = False) -> Parser:
    """All options of train, sweep or describe for one architecture: common ones, then its own."""
    parser = common_parser(command, name, show_all)
    parser.moved = architectures.moved_options(name)
    _add_own_options(parser, name, show_all)
    return parser


def add_run_options(parser: argparse.ArgumentParser, command: str, name: str) -> None:
    """Add the options of run_parser, without the architecture's name before them."""
    _add_common_options(parser, command, show_all=True)
    _add_own_options(parser, name, show_all=True)


def _add_common_options(parser: argparse.ArgumentParser, command: str, show_all: bool) -> None:
    if command == "describe":
        parser.add_argument(
            "--format", choices=("text", "mermaid"), default="text", help="of the diagram [text]"
        )
    if command == "sweep":
        from veldt.sweeps.search import SweepOptions

        group = parser.add_argument_group("the search")
        text = "an option and its values: LOW..HIGH, LOW..HIGH:log or A,B,C; several times"
        settings = {"default": argparse.SUPPRESS, "metavar": "NAME=VALUES", "help": text}
        group.add_argument("--search", action="append", **settings)  # type: ignore[arg-type]
        add_fields(group, SweepOptions)
    if command != "describe":
        group = parser.add_argument_group("options in a file")
        text = "options in TOML, YAML or JSON, or config.json of a run; those given here win"
        group.add_argument("--config", default=argparse.SUPPRESS, metavar="FILE", help=text)
        text = f"{_TRUST}; also that of --from" if show_all else argparse.SUPPRESS
        group.add_argument(TRUST_FLAG, action="store_true", default=argparse.SUPPRESS, help=text)
    shown = None if show_all else USUAL
    groups = COMMON_GROUPS if show_all else {"common options": tuple(option_fields(RunOptions))}
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        add_fields(group, RunOptions, required=False, only=names, shown=shown)


def _add_own_options(parser: argparse.ArgumentParser, name: str, show_all: bool) -> None:
    """The options of an architecture; with `show_all`, by the group of its Config."""
    system = architectures.load(name)
    title = f"options of {architectures.label(name)}"
    known = option_fields(system.config)
    groups: dict[str, list[str]] = {}
    for own, option in known.items():
        group = f", {option.path[-1].replace('_', ' ')}" if show_all and option.path else ""
        groups.setdefault(title + group, []).append(own)
    shown: set[str] | None = None
    if not show_all:  # of a user's own architecture without usual ones, those outside of groups
        outside = {own for own, option in known.items() if not option.path}
        shown = USUAL_OWN & set(known) or outside
    for heading, names in sorted(groups.items(), key=lambda entry: entry[0] != title):
        group_parser = parser.add_argument_group(heading)
        add_fields(group_parser, system.config, system.presets, only=names, shown=shown)


def resume_parser(run_dir: str | Path | None = None, trust_code: bool = False) -> Parser:
    """With a run, the options that may not change are added, so that they are refused by name."""
    parser = Parser("veldt resume", "Resume a run from its newest checkpoint; budgets may change")
    parser.usage = "veldt resume RUN_DIR [--total-env-steps N] [--max-seconds S] [options]"
    parser.add_argument("run", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(TRUST_FLAG, action="store_true", help=_TRUST)
    group = parser.add_argument_group("what may change")
    add_fields(group, RunOptions, required=False, only=RESUMABLE)
    if run_dir is not None:
        system = architectures.load(saved_options(Path(run_dir), trust_code)[0])
        fixed = option_fields(RunOptions).keys() - RESUMABLE
        add_fields(group, RunOptions, required=False, only=fixed)
        add_fields(group, system.config, system.presets)
    return parser


_CHECKPOINT = "best weights, newest checkpoint, or the one at N env steps [%(default)s]"
_SHARED: dict[str, dict[str, Any]] = {
    "run_dir": {"metavar": "RUN_DIR", "help": "directory of a run"},
    "--checkpoint": {"metavar": "best|last|N", "help": _CHECKPOINT},
    "--policy": {"type": whole, "help": "one of several [the best]"},
    "--seed": {"type": whole, "help": "seed of what is random [%(default)s]"},
    "--stochastic": {
        "action": "store_true",
        "help": "draw actions from the policy; Q networks act at random in 5%% of steps",
    },
    TRUST_FLAG: {"action": "store_true", "help": _TRUST},
    "--json": {"action": "store_true", "help": "print JSON"},
}
"""Arguments that several commands have."""


def _parser(command: str, description: str, *shared: str, **defaults: object) -> Parser:
    parser = Parser(f"veldt {command}", description)
    for name in shared:
        parser.add_argument(name, **_SHARED[name])
    parser.set_defaults(**defaults)
    return parser


def list_parser() -> Parser:
    return _parser("list", "List the architectures: year, paper, what is new", "--json")


def evaluate_parser() -> Parser:
    shared = ("run_dir", "--checkpoint", "--policy", "--seed", "--stochastic", TRUST_FLAG, "--json")
    text = "Play fresh episodes with a checkpoint of a run"
    parser = _parser("evaluate", text, *shared, checkpoint="last", seed=0)
    parser.add_argument("--episodes", type=whole, default=20, help="episodes to play [20]")
    parser.add_argument("--env", metavar="ID", help="play another environment of the same spaces")
    parser.add_argument("--video", action="store_true", help="record one more episode in RUN_DIR")
    return parser


def exploit_parser() -> Parser:
    text = "Exploit: how much a fresh learner wins against a run's main player"
    parser = _parser("exploit", text, "run_dir", "--seed", "--json", seed=1)
    steps = {"type": whole, "default": 500_000, "help": "of the exploiter [500000]"}
    parser.add_argument("--total-env-steps", **steps)  # type: ignore[arg-type]
    parser.add_argument("--games", type=whole, default=2000, help="at the end [2000]")
    parser.add_argument("--backend", choices=("serial", "process"), default="process")
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    return parser


def play_parser() -> Parser:
    text, shared = "Play one game against a model of a run", ("run_dir", "--checkpoint", "--seed")
    parser = _parser("play", text, *shared, checkpoint="last", seed=0)
    parser.add_argument("--env", help="the game; must be the one the run has learned")
    parser.add_argument("--seat", type=whole, default=0, help="yours; 0 moves first [0]")
    return parser


def export_parser() -> Parser:
    text = "Export the policy of a run to a file that needs no Veldt"
    shared = ("run_dir", "--checkpoint", "--policy", TRUST_FLAG)
    parser = _parser("export", text, *shared, checkpoint="best")
    parser.usage = "veldt export RUN_DIR --out FILE [--format onnx|torch] [options]"
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write it")
    formats = {"choices": ("onnx", "torch"), "help": "ONNX, or a program of torch.export [onnx]"}
    parser.add_argument("--format", default="onnx", **formats)  # type: ignore[arg-type]
    return parser


def serve_parser() -> Parser:
    text = "Serve the policy of a run to simulators, over gRPC"
    shared = ("run_dir", "--checkpoint", "--policy", "--stochastic", TRUST_FLAG, "--json")
    parser = _parser("serve", text, *shared, checkpoint="best")
    parser.usage = "veldt serve RUN_DIR [--checkpoint best|last|N] [--host HOST] [--port PORT]"
    text = "other than this machine's: with token and TLS only [127.0.0.1]"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    text = "0: any that is free, which is printed [0]"
    parser.add_argument("--port", type=whole, default=0, help=text)
    return parser


def watch_parser() -> Parser:
    parser = _parser("watch", "Watch: a live page of runs, running or ended")
    parser.usage = "veldt watch RUN_DIR [RUN_DIR ...] [--port N]"
    text = "directory of a run, or a folder of runs; several are shown side by side"
    parser.add_argument("run_dir", nargs="+", metavar="RUN_DIR", help=text)
    text = "port on this machine; 0: any that is free [0]"
    parser.add_argument("--port", type=whole, default=0, help=text)
    # For runs that start the page themselves.
    parser.add_argument("--beside-run", type=whole, help=argparse.SUPPRESS)
    return parser


def compare_parser() -> Parser:
    from veldt.compare.runs import Comparison

    parser = _parser("compare", "Compare several architectures and seeds under one budget")
    parser.usage = "veldt compare --env ID --out DIR [--architectures a,b|all] [options]"
    add_fields(parser, Comparison)
    return parser


def plan_parser() -> Parser:
    from veldt.planner.command import PlanOptions

    parser = _parser("plan", "Predict an architecture on a machine you do not have")
    parser.usage = "veldt plan ARCH --env ID [--actors 1,4,16] [--cores N] [--validate] [options]"
    parser.add_argument("architecture", metavar="ARCH", help=", ".join(ARCHITECTURES))
    add_fields(parser, PlanOptions)
    return parser


def completion_parser() -> Parser:
    parser = _parser("completion", 'Print a script; for bash: eval "$(veldt completion bash)"')
    parser.add_argument("shell", metavar="|".join(SHELLS), choices=SHELLS)
    return parser


PARSERS: dict[str, Callable[[], Parser]] = {
    "list": list_parser,
    "resume": resume_parser,
    "evaluate": evaluate_parser,
    "exploit": exploit_parser,
    "play": play_parser,
    "export": export_parser,
    "serve": serve_parser,
    "watch": watch_parser,
    "compare": compare_parser,
    "plan": plan_parser,
    "completion": completion_parser,
}
"""Of the commands whose options do not depend on an architecture."""
