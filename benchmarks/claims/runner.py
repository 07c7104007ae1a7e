# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a claim and judges them. A finished case is a file and is not run again, unless
its settings have changed; more seeds add cases."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from veldt.files import write_atomically
from veldt.resources import usable_cores
from veldt.telemetry.result import dumps

from .claim import UNDECIDED, Claim, Row, Verdict, conclude

Say = Callable[[str], None]


def run_cases(claim: Claim, folder: Path, say: Say) -> tuple[list[Row], float]:
    """Run what is not finished; all rows, and the seconds that they took: of cases side by side
    each counts with its share."""
    cases, settings = claim.cases(), _plain(asdict(replace(claim, seeds=0, first_seed=0)))
    paths = [folder / f"{_file_name(case)}.json" for case in cases]
    records = [_finished(path, settings) for path in paths]
    todo = [index for index, record in enumerate(records) if record is None]
    for index in sorted(set(range(len(cases))) - set(todo)):
        say(f"{_place(claim, cases, index)}: finished before")
    folder.mkdir(parents=True, exist_ok=True)
    side_by_side = 1 if claim.is_timed else min(usable_cores(), max(1, len(todo)))
    for index, (measured, seconds) in zip(
        todo, _measured(claim, [cases[index] for index in todo], side_by_side), strict=True
    ):
        row = {**cases[index], **measured}
        record = {"settings": settings, "seconds": seconds / side_by_side, "row": row}
        write_atomically(paths[index], dumps(record) + "\n")
        say(f"{_place(claim, cases, index)}: {seconds:.1f} s")
        records[index] = record
    kept = [record for record in records if record is not None]
    return [record["row"] for record in kept], sum(record["seconds"] for record in kept)


def _measured(claim: Claim, cases: list[Row], side_by_side: int) -> Iterator[tuple[Row, float]]:
    """What each case gave, in their order, and its seconds."""
    if side_by_side == 1:
        yield from (_timed(claim, case) for case in cases)
        return
    own = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(side_by_side, own, _begin_worker) as pool:
        calls = [pool.submit(_timed, claim, case) for case in cases]
        try:
            for call in calls:
                yield call.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _timed(claim: Claim, case: Row) -> tuple[Row, float]:
    began = time.monotonic()
    return _plain(claim.measure(case)), time.monotonic() - began


def _begin_worker() -> None:
    """One core is its share, and it ends with the process that asks it, however that ends."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _place(claim: Claim, cases: list[Row], index: int) -> str:
    return f"{claim.name} [{index + 1}/{len(cases)}] {_words(cases[index])}"


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

    from veldt.compare.report import save_png

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
