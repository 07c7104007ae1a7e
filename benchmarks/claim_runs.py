# SPDX-License-Identifier: Apache-2.0
"""Runs one claim with its settings as options and keeps the result.

The experiment is the claim's own; a benchmark script only names it. Writes <name>.json and .png to
benchmarks/results.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from claims.claim import Claim, criterion_cells
from claims.runner import draw, judge, run_cases
from measuring import machine, save

from veldt.cli.parsers import Parser, add_fields
from veldt.errors import ConfigurationError


def main(kind: type[Claim], name: str) -> int:
    """Run `kind` with the options of the command line; results are called `name`."""
    parser = Parser(f"python benchmarks/{name}.py", kind.statement)
    add_fields(parser, kind)
    try:
        claim = kind(**parser.parse(sys.argv[1:]))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    about = machine()
    with tempfile.TemporaryDirectory(prefix="veldt-benchmark-") as folder:
        rows, seconds = run_cases(claim, Path(folder), lambda text: print(text, flush=True))
    verdict = judge(claim, rows, seconds).to_document()
    for part in verdict["parts"]:
        print(f"{part['what']}: {', '.join(criterion_cells(part))}")
    print(*verdict["notes"], sep="\n")
    path = save(name, {"settings": verdict.pop("settings"), "machine": about, **verdict})
    draw(claim, rows, path.with_suffix(".png"))
    return 0
