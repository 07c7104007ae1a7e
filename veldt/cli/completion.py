# SPDX-License-Identifier: Apache-2.0
"""Completion scripts, made by shtab from the parsers. The script contains all words, so that
completing starts no Python."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import shtab

from veldt.architectures import ARCHITECTURES
from veldt.cli.parsers import WITHOUT_ARCHITECTURE, add_run_options, command_parser
from veldt.options import ENCODERS

_DIRECTORIES = ("run", "run_dir", "out", "from_run")
_FILES = ("config",)


def script(shell: str, summaries: Mapping[str, str]) -> str:
    """The completion script of one shell; `summaries` has one line about each command."""
    return shtab.complete(_program(summaries), shell)


def _program(summaries: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line as one parser. In train, sweep and describe each architecture is a
    subcommand, because the options depend on it."""
    values = {
        "network": ENCODERS,
        "env": environment_ids(),
        "architectures": ("all", *ARCHITECTURES),
    }
    program = argparse.ArgumentParser("veldt")
    program.add_argument("--version", action="store_true", help="print the version")
    commands = program.add_subparsers()
    for command, summary in summaries.items():
        if command in WITHOUT_ARCHITECTURE:
            own = command_parser(command)
            commands.add_parser(command, help=summary, parents=[own], add_help=False)
            _offer(own, values)
            continue
        names = commands.add_parser(command, help=summary).add_subparsers()
        for name, row in ARCHITECTURES.items():
            own_options = names.add_parser(name, help=row.new)
            add_run_options(own_options, command, name)
            _offer(own_options, values)
    return program


def _offer(parser: argparse.ArgumentParser, values: Mapping[str, tuple[str, ...]]) -> None:
    """Set the values that completion offers.

    They are no choices of the real parser, which also accepts files, module:function and lists."""
    for action in parser._actions:
        if action.dest in values:
            action.choices = values[action.dest]
        elif action.dest in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def environment_ids() -> tuple[str, ...]:
    """The newest version of each registered Gymnasium id that needs no further module."""
    import gymnasium

    newest: dict[str, tuple[int, str]] = {}
    for name, spec in gymnasium.registry.items():
        if spec.namespace is None:
            version = spec.version or 0
            newest[spec.name] = max(newest.get(spec.name, (-1, "")), (version, name))
    return tuple(sorted(name for _, name in newest.values()))
