# SPDX-License-Identifier: Apache-2.0
"""`veldt compare`: plans, runs, report."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial

from veldt.architectures import label
from veldt.compare.runs import ALL, Comparison, prepare_output_dir, run_all, tasks
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import Plan, make_plan

COSTS_FILE = "evidence.json"


def compare(comparison: Comparison) -> int:
    """Run what is missing and write the report; 1 if a run failed, else 0."""
    plans, left_out = _plans(comparison)
    out = prepare_output_dir(comparison)
    todo = tasks(comparison, [plan.architecture for plan in plans], out)
    log = partial(print, flush=True)
    failures = run_all(todo, log)

    # Imported here so that bad input is refused without matplotlib.
    from veldt.compare.records import collect, costs, env_only_speed, machine, write_csv
    from veldt.compare.report import write_report

    records, command = collect(todo), shlex.join(["veldt", *sys.argv[1:]])
    width = max(plan.problem.envs_per_actor for plan in plans)
    ceiling = env_only_speed(plans[0].problem.environment, width, comparison.ceiling_seconds)
    topologies = {label(plan.architecture): plan.topology for plan in plans}
    found = costs(records, topologies)
    write_csv(out / "results.csv", records)
    document = {"env": comparison.env, "command": command, "machine": machine(), "systems": found}
    (out / COSTS_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missing = [f"{name} does not fit: {why}" for name, why in left_out.items()]
    missing += [f"{name} failed: {why}" for name, why in failures.items()]
    write_report(out, comparison, command, records, todo, topologies, found, ceiling, missing)
    log(f"report: {out / 'report.html'}")
    return 1 if failures else 0


def _plans(comparison: Comparison) -> tuple[list[Plan], dict[str, str]]:
    """A plan per architecture, and why others of `all` do not fit; named ones must fit."""
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
