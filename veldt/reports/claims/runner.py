# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a claim and judges them. A finished case is a file and is not run again, unless
its settings have changed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from veldt.files import write_atomically
from veldt.reports.claims.claim import UNDECIDED, Claim, Row, Verdict, conclude
from veldt.telemetry.result import dumps

Say = Callable[[str], None]


def run_cases(claim: Claim, folder: Path, say: Say) -> tuple[list[Row], float]:
    """Run what is not finished; all rows, and the seconds that their runs took."""
    cases, rows, seconds = claim.cases(), [], 0.0
    settings = _plain(asdict(claim))
    for number, case in enumerate(cases, start=1):
        place = f"{claim.name} [{number}/{len(cases)}] {_words(case)}"
        path = folder / f"{_file_name(case)}.json"
        record = _finished(path, settings)
        if record is None:
            began = time.monotonic()
            measured = _plain(claim.measure(case))
            row = {**case, **measured}
            record = {"settings": settings, "seconds": time.monotonic() - began, "row": row}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, dumps(record) + "\n")
            say(f"{place}: {record['seconds']:.1f} s")
        else:
            say(f"{place}: finished before")
        rows.append(record["row"])
        seconds += record["seconds"]
    return rows, seconds


def judge(claim: Claim, rows: list[Row], seconds: float, quick: bool = False) -> Verdict:
    """The claim's rule, applied to what was measured."""
    parts, figure = claim.judge(rows), f"{claim.name}.png"
    notes = claim.notes(rows)
    return Verdict(claim, conclude(parts), parts, rows, figure, seconds, quick, notes)


def not_run(claim: Claim, error: BaseException, quick: bool = False) -> Verdict:
    """What is said of a claim whose experiment broke."""
    why = f"The experiment did not run: {type(error).__name__}: {' '.join(str(error).split())}"
    return Verdict(claim, UNDECIDED, quick=quick, notes=[why])


def draw(claim: Claim, rows: list[Row], path: Path) -> None:
    """The claim's figure as a PNG."""
    from matplotlib.figure import Figure

    from veldt.reports.compare.figures import save_png

    figure = Figure(figsize=(9.0, 3.6), dpi=120, layout="constrained")
    claim.draw(rows, figure)
    save_png(figure, path)


def _finished(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if record["settings"] == settings and record["row"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """As it would come back from a file."""
    return json.loads(dumps(value))


def _words(case: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in case.items())


def _file_name(case: Row) -> str:
    text = "_".join(f"{name}-{value}" for name, value in case.items())
    return re.sub(r"[^\w.-]+", "-", text)
