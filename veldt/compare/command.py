# SPDX-License-Identifier: Apache-2.0
"""`veldt compare` from the first check to the report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields

from veldt.architectures import label
from veldt.compare.runs import run_all, tasks
from veldt.compare.settings import ALL, Comparison, claim_folder
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import Plan, make_plan


def compare(comparison: Comparison) -> int:
    """Run what is missing and write the report; 1 if a run failed, else 0."""
    plans, left_out = _plans(comparison)
    out = claim_folder(comparison)
    todo = tasks(comparison, [plan.architecture for plan in plans], out)
    failures = run_all(todo, _say)

    # Imported late: matplotlib is not needed to refuse bad input.
    from veldt.compare.evidence import EVIDENCE_FILE, evidence, table, write_evidence
    from veldt.compare.figures import draw_all
    from veldt.compare.machine import machine
    from veldt.compare.records import collect, env_ceiling, write_csv
    from veldt.compare.report import Report, write_report

    records = collect(todo)
    width = max(plan.problem.envs_per_actor for plan in plans)
    ceiling = env_ceiling(plans[0].problem.environment, width, comparison.ceiling_seconds)
    write_csv(out / "results.csv", records)
    topologies = {label(plan.architecture): plan.topology for plan in plans}
    found = evidence(records, topologies)
    if comparison.evidence:
        write_evidence(out / EVIDENCE_FILE, found, comparison.env, command_line(comparison))
        for row in table(found):
            _say("  ".join(f"{cell:>20}" for cell in row))
    report = Report(
        comparison,
        records,
        draw_all(records, ceiling, out),
        topologies,
        todo,
        left_out,
        failures,
        ceiling,
        machine(),
        command_line(comparison),
        table(found),
    )
    write_report(out / "report.html", report)
    _say(f"report: {out / 'report.html'}")
    return 1 if failures else 0


def command_line(comparison: Comparison) -> str:
    """The command that makes this comparison."""
    words = ["veldt", "compare"]
    for entry in fields(comparison):
        value = getattr(comparison, entry.name)
        if value != entry.default:
            words.append(f"--{entry.name.replace('_', '-')}")
            if not isinstance(value, bool):
                words.append(",".join(value) if isinstance(value, tuple) else str(value))
    return shlex.join(words)


def _plans(comparison: Comparison) -> tuple[list[Plan], dict[str, str]]:
    """A plan per architecture. What does not fit the environment or backend is refused if it was
    asked for by name, and left out, with the reason, if it was part of all."""
    plans, left_out = [], {}
    for name in comparison.names:
        try:
            plans.append(make_plan(name, RunOptions(**comparison.run_options), {}))
        except ConfigurationError as error:
            if comparison.architectures != (ALL,):
                raise
            left_out[name] = str(error)
    if not plans:
        raise ConfigurationError(next(iter(left_out.values())))
    return plans, left_out


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
