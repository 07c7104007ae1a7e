# SPDX-License-Identifier: Apache-2.0
"""Examines the claims of the papers: python -m benchmarks.claims [--only NAME ...] [--quick]

Writes claims.html, claims.json and a figure per claim; a second call skips finished runs."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from veldt.compare.records import machine
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.telemetry.result import dumps

from .claim import Claim, Verdict
from .registry import CLAIMS, chosen
from .runner import draw, judge, not_run, run_cases

RESULTS_FILE, PAGE_FILE = "claims.json", "claims.html"
_QUICK, _FULL = "-quick", "-full"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if an experiment failed, 2 if the input was invalid."""
    parser = argparse.ArgumentParser("python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these claims [all]")
    parser.add_argument("--out", default="claims", metavar="DIR", help="folder of results [claims]")
    parser.add_argument("--list", action="store_true", help="print the claims and their rules")
    parser.add_argument("--quick", action="store_true", help="seconds each; decides nothing")
    parser.add_argument("--full", action="store_true", help="more seeds and sizes; takes hours")
    parser.add_argument("--gpu", action="store_true", help="the claims that need a CUDA device")
    parser.add_argument("--first-seed", type=int, metavar="N", help="first seed [of each claim]")
    given = vars(parser.parse_args(arguments))
    try:
        return list_claims() if given.pop("list") else examine_all(**given)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


def list_claims() -> int:
    """Every claim, where it is from and when it holds."""
    for kind in CLAIMS.values():
        needs = " (with --gpu)" if kind.needs_gpu else ""
        _say(f"{kind.name}: {kind.statement}{needs}\n  {kind.paper}\n  {kind.rule}")
    return 0


def examine_all(
    only: Sequence[str],
    out: str,
    quick: bool,
    first_seed: int | None = None,
    full: bool = False,
    gpu: bool = False,
) -> int:
    """Run what is missing, judge it and write the page; 1 if an experiment broke, else 0."""
    claims: list[Claim] = [kind() for kind in chosen(only, gpu)]
    if quick and full:
        raise ConfigurationError("--quick and --full exclude each other; give one of them")
    if gpu:
        _check_gpu()
    if first_seed is not None:
        if first_seed < 0:
            raise ConfigurationError(f"first_seed is {first_seed}; use a whole number from 0 on")
        claims = [replace(claim, first_seed=first_seed) for claim in claims]
    if full:
        claims = [claim.full() for claim in claims]
    folder = Path(out)
    command = shlex.join(
        ["python", "-m", "benchmarks.claims", *(["--only", *only] if only else []), "--out", out]
        + ["--quick"] * quick
        + ["--full"] * full
        + ["--gpu"] * gpu
        + (["--first-seed", str(first_seed)] if first_seed is not None else [])
    )
    with held_folder(folder, "call", "--out"):
        suffix = _QUICK if quick else _FULL if full else ""
        verdicts = [_examine(claim, folder, suffix, command) for claim in claims]
    _say(f"report: {folder / PAGE_FILE}")
    return 1 if any(not verdict.rows for verdict in verdicts) else 0


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            "--gpu needs a CUDA device and torch sees none; run it on a machine with one, or leave"
            " --gpu out for the claims that need none"
        )


def _examine(claim: Claim, folder: Path, suffix: str, command: str) -> Verdict:
    """One claim to its verdict, which is in the files when this returns."""
    quick = suffix == _QUICK
    experiment = claim.quick() if quick else claim
    began = time.monotonic()
    try:
        runs = folder / "runs" / ((claim.runs_of or claim.name) + suffix)
        rows, seconds = run_cases(experiment, runs, _say)
        verdict = judge(experiment, rows, seconds, quick)
        draw(experiment, rows, folder / verdict.figure)
    except Exception as error:  # whatever broke one experiment, the others are still worth running
        verdict = not_run(experiment, error, quick)
        _say(f"{claim.name}: {verdict.notes[0]}")
    _publish(folder, verdict, command)
    _say(f"{claim.name}: {verdict.text} ({time.monotonic() - began:.0f} s)")
    return verdict


def _publish(folder: Path, verdict: Verdict, command: str) -> None:
    """Put one verdict beside those that are there, and write the page anew."""
    from .report import write_report

    found = {entry["name"]: entry for entry in held(folder)}
    found[verdict.claim.name] = json.loads(dumps(verdict.to_document()))
    document = {
        "machine": machine(),
        "command": command,
        "seconds": sum(found[name]["seconds"] for name in found if not CLAIMS[name].runs_of),
        "claims": [found[name] for name in CLAIMS if name in found],
    }
    write_atomically(folder / RESULTS_FILE, json.dumps(document, indent=1) + "\n")
    write_report(folder / PAGE_FILE, document)


def held(folder: Path) -> list[dict[str, Any]]:
    """The verdicts of earlier calls."""
    try:
        document = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
        return document["claims"]
    except (OSError, ValueError, KeyError):
        return []


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
