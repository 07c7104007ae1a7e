# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: the page of commands, from the real parsers."""

from __future__ import annotations

import argparse
from typing import Any

from veldt.cli.main import COMMANDS
from veldt.cli.parsers import PARSERS, run_parser

MARK = "<!-- commands -->"
_EXAMPLE = "impala"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return (
        markdown.replace(MARK, "\n\n".join(map(section, COMMANDS)))
        if MARK in markdown
        else markdown
    )


def section(command: str) -> str:
    """What `veldt COMMAND --help` prints, as wide as the page."""
    summary = (COMMANDS[command].__doc__ or "").strip()
    parser = PARSERS[command]() if command in PARSERS else run_parser(command, _EXAMPLE)
    parser.formatter_class = lambda prog: argparse.HelpFormatter(
        prog, max_help_position=28, width=78
    )
    return (
        f"## {command}\n\n{summary[:1].upper()}{summary[1:]}.\n\n"
        f"```text\n{parser.format_help().rstrip()}\n```"
    )
