# SPDX-License-Identifier: Apache-2.0
"""The parser of every command. Help, refusals and shell completion all come from these."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from veldt import architectures
from veldt.api import MAY_CHANGE
from veldt.architectures import ARCHITECTURES
from veldt.command_line.options import Parser, add_fields, whole_number
from veldt.options import RunOptions
from veldt.run.saved_options import saved_options
from veldt.run.trust import FLAG

SHELLS = ("bash", "zsh", "fish")
_TRUST = "run Python files that config.json names, also if they have changed since"


def list_parser() -> Parser:
    parser = Parser("veldt list", "List the architectures: year, paper, what is new")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def common_parser(command: str, name: str = "ARCH", description: str = "") -> Parser:
    """The options of `train` or `describe` that every architecture has."""
    parser = Parser(f"veldt {command} {name}", description or f"ARCH: {', '.join(ARCHITECTURES)}")
    parser.usage = f"veldt {command} {name} --env ID [options]"
    if command == "describe":
        parser.usage = f"veldt describe {name} [--env ID] [--format text|mermaid] [options]"
    parser.add_argument("architecture", metavar="ARCH", help=f"here: {name}")
    _add_common_options(parser, command)
    return parser


def run_parser(command: str, name: str) -> Parser:
    """All options of `train` or `describe` for one architecture: common ones, then its own."""
    parser = common_parser(command, name, architectures.summary(name))
    _add_own_options(parser, name)
    return parser


def add_run_options(parser: argparse.ArgumentParser, command: str, name: str) -> None:
    """The same options without the architecture's name before them."""
    _add_common_options(parser, command)
    _add_own_options(parser, name)


def _add_common_options(parser: argparse.ArgumentParser, command: str) -> None:
    if command == "describe":
        parser.add_argument(
            "--format", choices=("text", "mermaid"), default="text", help="of the diagram [text]"
        )
    group = parser.add_argument_group("common options")
    add_fields(group, RunOptions, required=command == "train")


def _add_own_options(parser: argparse.ArgumentParser, name: str) -> None:
    module = architectures.load(name)
    group = parser.add_argument_group(f"options of {architectures.label(name)}")
    add_fields(group, module.Config, module.PRESETS)


def resume_parser(run_dir: str | None = None, trust_code: bool = False) -> Parser:
    """With a run, what may not change is known too, so that it is refused by name."""
    parser = Parser("veldt resume", "Resume a run from its newest checkpoint; budgets may change")
    parser.usage = "veldt resume RUN_DIR [--total-env-steps N] [--max-seconds S] [options]"
    parser.add_argument("run", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(FLAG, action="store_true", help=_TRUST)
    group = parser.add_argument_group("what may change")
    add_fields(group, RunOptions, required=False, only=MAY_CHANGE)
    if run_dir is not None:
        module = architectures.load(saved_options(Path(run_dir), trust_code)[0])
        fixed = {entry.name for entry in fields(RunOptions)} - MAY_CHANGE
        add_fields(group, RunOptions, required=False, only=fixed)
        add_fields(group, module.Config, module.PRESETS)
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
    parser = Parser("veldt play", "Play one game against a run's newest model")
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run on a game")
    parser.add_argument("--env", help="the game; must be the one the run has learned")
    parser.add_argument("--seat", type=whole_number, default=0, help="yours; 0 moves first [0]")
    parser.add_argument("--seed", type=whole_number, default=0, help="fixes cards [0]")
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


def watch_parser() -> Parser:
    parser = Parser("veldt watch", "Watch: a live page of a run that goes on or has ended")
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(
        "--port", type=whole_number, default=0, help="port on this machine; 0: any that is free [0]"
    )
    # For runs that start the page themselves.
    parser.add_argument("--beside-run", type=whole_number, help=argparse.SUPPRESS)
    return parser


def compare_parser() -> Parser:
    from veldt.reports.compare.settings import Comparison

    parser = Parser("veldt compare", "Compare several architectures and seeds under one budget")
    parser.usage = "veldt compare --env ID --out DIR [--architectures a,b|all] [options]"
    add_fields(parser, Comparison)
    return parser


def claims_parser() -> Parser:
    parser = Parser("veldt claims", "Examine the claims of the lineage, each with a verdict")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these claims [all]")
    parser.add_argument(
        "--out", default="claims", metavar="DIR", help="where results go; goes on there [claims]"
    )
    parser.add_argument("--list", action="store_true", help="print the claims and their rules")
    parser.add_argument("--quick", action="store_true", help="seconds each; decides nothing")
    parser.add_argument(
        "--first-seed", type=int, metavar="N", help="count seeds on from here [each claim's own]"
    )
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
    "watch": watch_parser,
    "compare": compare_parser,
    "claims": claims_parser,
    "plan": plan_parser,
    "completion": completion_parser,
}
"""Of the commands whose options do not depend on an architecture."""
