# SPDX-License-Identifier: Apache-2.0
"""The parser of every command. Help, refusals and shell completion all come from these."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from veldt import architectures
from veldt.architectures import ARCHITECTURES
from veldt.cli import help
from veldt.cli.options import Parser, add_fields
from veldt.options import RunOptions
from veldt.options.fields import option_fields
from veldt.options.text import whole_number
from veldt.run.changing import MAY_CHANGE
from veldt.run.saved_options import saved_options
from veldt.run.trust import FLAG
from veldt.sweeps.search import SweepOptions

SHELLS = ("bash", "zsh", "fish")
_TRUST = "run Python files that config.json names, also if they have changed since"


def list_parser() -> Parser:
    parser = Parser("veldt list", "List the architectures: year, paper, what is new")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def common_parser(
    command: str, name: str = "ARCH", description: str = "", show_all: bool = False
) -> Parser:
    """The options of `train` or `describe` that every architecture has."""
    description = description or f"ARCH: {', '.join(ARCHITECTURES)}"
    parser = Parser(f"veldt {command} {name}", description, add_help=False)
    parser.usage = f"veldt {command} {name} --env ID [options]"
    if command == "describe":
        parser.usage = f"veldt describe {name} [--env ID] [--format text|mermaid] [options]"
    if command == "sweep":
        parser.usage = f"veldt sweep {name} --env ID --search NAME=VALUES ... [options]"
    parser.add_argument(
        "architecture", metavar="ARCH", help="an architecture, or the path of one's file"
    )
    parser.add_argument("-h", "--help", action=help.HelpAction)
    _add_common_options(parser, command, show_all)
    if not show_all:
        parser.epilog = help.ending(parser.prog)
    return parser


def run_parser(command: str, name: str, show_all: bool = False) -> Parser:
    """All options of `train` or `describe` for one architecture: common ones, then its own. Help
    shows those that people use, unless it is to show all."""
    parser = common_parser(command, name, architectures.summary(name), show_all)
    parser.moved = architectures.moved_options(name)
    _add_own_options(parser, name, show_all)
    return parser


def add_run_options(parser: argparse.ArgumentParser, command: str, name: str) -> None:
    """The same options without the architecture's name before them."""
    _add_common_options(parser, command, show_all=True)
    _add_own_options(parser, name, show_all=True)


def _add_common_options(parser: argparse.ArgumentParser, command: str, show_all: bool) -> None:
    if command == "describe":
        parser.add_argument(
            "--format", choices=("text", "mermaid"), default="text", help="of the diagram [text]"
        )
    if command == "sweep":
        sweep = parser.add_argument_group("the search")
        sweep.add_argument(
            "--search",
            action="append",
            default=argparse.SUPPRESS,
            metavar="NAME=VALUES",
            help="an option and its values: LOW..HIGH, LOW..HIGH:log or A,B,C; several times",
        )
        add_fields(sweep, SweepOptions)
    if command != "describe":
        _add_config_options(parser, show_all)
    groups = {"common options": list(option_fields(RunOptions))}
    if show_all:
        groups = help.common_groups()
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        shown = None if show_all else help.USUAL
        add_fields(group, RunOptions, required=False, only=names, shown=shown)


def _add_config_options(parser: argparse.ArgumentParser, show_all: bool) -> None:
    group = parser.add_argument_group("options in a file")
    group.add_argument(
        "--config",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="options in TOML, YAML or JSON, or config.json of a run; those given here win",
    )
    group.add_argument(
        FLAG,
        action="store_true",
        default=argparse.SUPPRESS,
        help=f"{_TRUST}; also that of --from" if show_all else argparse.SUPPRESS,
    )


def _add_own_options(parser: argparse.ArgumentParser, name: str, show_all: bool) -> None:
    system, label = architectures.load(name), architectures.label(name)
    groups = {f"options of {label}": list(option_fields(system.config))}
    if show_all:
        groups = help.own_groups(system.config, label)
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        shown = None if show_all else help.usual_own(system.config)
        add_fields(group, system.config, system.presets, only=names, shown=shown)


def resume_parser(run_dir: str | None = None, trust_code: bool = False) -> Parser:
    """With a run, what may not change is known too, so that it is refused by name."""
    parser = Parser("veldt resume", "Resume a run from its newest checkpoint; budgets may change")
    parser.usage = "veldt resume RUN_DIR [--total-env-steps N] [--max-seconds S] [options]"
    parser.add_argument("run", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(FLAG, action="store_true", help=_TRUST)
    group = parser.add_argument_group("what may change")
    add_fields(group, RunOptions, required=False, only=MAY_CHANGE)
    if run_dir is not None:
        system = architectures.load(saved_options(Path(run_dir), trust_code)[0])
        fixed = {entry.name for entry in fields(RunOptions)} - MAY_CHANGE
        add_fields(group, RunOptions, required=False, only=fixed)
        add_fields(group, system.config, system.presets)
    return parser


def evaluate_parser() -> Parser:
    parser = Parser("veldt evaluate", "Play fresh episodes with a checkpoint of a run")
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--episodes", type=whole_number, default=20, help="episodes to play [20]")
    parser.add_argument("--seed", type=whole_number, default=0, help="fixes the episodes [0]")
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="best|last|N",
        help="the best weights, the newest checkpoint, or that of N env steps [last]",
    )
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="draw actions from the policy; Q networks act at random in 5%% of steps",
    )
    parser.add_argument("--env", metavar="ID", help="play another environment of the same spaces")
    parser.add_argument("--policy", type=whole_number, help="one of several [the best]")
    parser.add_argument("--video", action="store_true", help="record one more episode in RUN_DIR")
    parser.add_argument(FLAG, action="store_true", help=_TRUST)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def exploit_parser() -> Parser:
    parser = Parser("veldt exploit", "Exploit: how much a fresh learner wins against a run's main")
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run on a game")
    parser.add_argument(
        "--total-env-steps", type=whole_number, default=500_000, help="of the exploiter [500000]"
    )
    parser.add_argument("--games", type=whole_number, default=2000, help="at the end [2000]")
    parser.add_argument("--seed", type=whole_number, default=1, help="of the exploiter [1]")
    parser.add_argument("--backend", choices=("serial", "process"), default="process")
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def play_parser() -> Parser:
    parser = Parser("veldt play", "Play one game against a model of a run")
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run on a game")
    parser.add_argument("--env", help="the game; must be the one the run has learned")
    parser.add_argument("--seat", type=whole_number, default=0, help="yours; 0 moves first [0]")
    parser.add_argument("--seed", type=whole_number, default=0, help="fixes cards [0]")
    parser.add_argument(
        "--checkpoint", default="last", metavar="best|last|N", help="as in evaluate [last]"
    )
    return parser


def export_parser() -> Parser:
    parser = Parser("veldt export", "Export the policy of a run to a file that needs no Veldt")
    parser.usage = "veldt export RUN_DIR --out FILE [--format onnx|torch] [options]"
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write it")
    parser.add_argument(
        "--format",
        choices=("onnx", "torch"),
        default="onnx",
        help="ONNX, or a program of torch.export [onnx]",
    )
    parser.add_argument(
        "--checkpoint", default="best", metavar="best|last|N", help="as in evaluate [best]"
    )
    parser.add_argument("--policy", type=whole_number, help="one of several [the best]")
    parser.add_argument(FLAG, action="store_true", help=_TRUST)
    return parser


def serve_parser() -> Parser:
    parser = Parser("veldt serve", "Serve the policy of a run to simulators, over gRPC")
    parser.usage = "veldt serve RUN_DIR [--checkpoint best|last|N] [--host HOST] [--port PORT]"
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(
        "--checkpoint", default="best", metavar="best|last|N", help="as in evaluate [best]"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="beyond this machine with token and TLS only [127.0.0.1]",
    )
    parser.add_argument(
        "--port", type=whole_number, default=0, help="0: any that is free, which is printed [0]"
    )
    parser.add_argument("--stochastic", action="store_true", help="draw actions, as in evaluate")
    parser.add_argument("--policy", type=whole_number, help="one of several [the best]")
    parser.add_argument(FLAG, action="store_true", help=_TRUST)
    parser.add_argument("--json", action="store_true", help="print address and end as JSON lines")
    return parser


def watch_parser() -> Parser:
    parser = Parser("veldt watch", "Watch: a live page of runs that go on or have ended")
    parser.usage = "veldt watch RUN_DIR [RUN_DIR ...] [--port N]"
    parser.add_argument(
        "run_dir",
        nargs="+",
        metavar="RUN_DIR",
        help="directory of a run, or a folder of runs; several are shown side by side",
    )
    parser.add_argument(
        "--port", type=whole_number, default=0, help="port on this machine; 0: any that is free [0]"
    )
    # For runs that start the page themselves.
    parser.add_argument("--beside-run", type=whole_number, help=argparse.SUPPRESS)
    return parser


def compare_parser() -> Parser:
    from veldt.compare.runs import Comparison

    parser = Parser("veldt compare", "Compare several architectures and seeds under one budget")
    parser.usage = "veldt compare --env ID --out DIR [--architectures a,b|all] [options]"
    add_fields(parser, Comparison)
    return parser


def plan_parser() -> Parser:
    from veldt.planner.command import PlanOptions

    parser = Parser("veldt plan", "Predict an architecture on a machine that is not there")
    parser.usage = "veldt plan ARCH --env ID [--actors 1,4,16] [--cores N] [--validate] [options]"
    parser.add_argument("architecture", metavar="ARCH", help=", ".join(ARCHITECTURES))
    add_fields(parser, PlanOptions)
    return parser


def completion_parser() -> Parser:
    parser = Parser("veldt completion", 'Print a script; for bash: eval "$(veldt completion bash)"')
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
