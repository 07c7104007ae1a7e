# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: help of every command and options of every architecture, from the code."""

from __future__ import annotations

import argparse
from dataclasses import is_dataclass
from typing import Any

from veldt.architectures import ARCHITECTURES, load
from veldt.cli.main import COMMANDS
from veldt.cli.parsers import WITHOUT_ARCHITECTURE, command_parser, run_parser
from veldt.options.fields import flat, option_fields

COMMANDS_MARK = "<!-- commands -->"
OPTIONS_MARK = "<!-- options -->"
_EXAMPLE = "impala"


def on_page_markdown(markdown: str, **_: Any) -> str:
    for mark, section, names in (
        (COMMANDS_MARK, command_section, COMMANDS),
        (OPTIONS_MARK, options_section, ARCHITECTURES),
    ):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n\n".join(map(section, names)))
    return markdown


def command_section(command: str) -> str:
    """What `veldt COMMAND --help` prints, as wide as the page."""
    summary = (COMMANDS[command].__doc__ or "").strip()
    without = command in WITHOUT_ARCHITECTURE
    parser = command_parser(command) if without else run_parser(command, _EXAMPLE)
    parser.formatter_class = lambda prog: argparse.HelpFormatter(
        prog, max_help_position=28, width=78
    )
    return (
        f"## {command}\n\n{summary[:1].upper()}{summary[1:]}.\n\n"
        f"```text\n{parser.format_help().rstrip()}\n```"
    )


def options_section(name: str) -> str:
    """Options of an architecture: meaning, and the value in each preset that differs."""
    system = load(name)
    defaults = flat(system.config())
    presets = {preset: flat(config) for preset, config in system.presets.items()}
    lines = ["| option | meaning | default | presets |", "| --- | --- | --- | --- |"]
    for option, leaf in option_fields(system.config).items():
        default = defaults[option]
        other = ", ".join(
            f"{preset}: `{_shown(values[option])}`"
            for preset, values in presets.items()
            if values[option] != default
        )
        text = " ".join(leaf.text.split()).replace("|", "\\|")
        lines.append(f"| `{option}` | {text} | `{_shown(default)}` | {other} |")
    return f"## {name}\n\n" + "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None or is_dataclass(value) else str(value)
