# SPDX-License-Identifier: Apache-2.0
"""What the systems of a comparison cost and wait for, in one table: bytes per env step up and down,
who waits how long, and lag. From the counters of the runs; nothing is estimated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from veldt.compare.machine import machine
from veldt.compare.records import Record, Records
from veldt.compare.traffic import actor_traffic
from veldt.telemetry.record import STATUS_FILE
from veldt.topology import Topology

EVIDENCE_FILE = "evidence.json"
_HEADER = ("system", "bytes up per step", "bytes down per step", "actors wait", "learners wait",
           "lag (updates)", "env steps/s")  # fmt: skip


def evidence(records: Records, topologies: dict[str, Topology]) -> dict[str, dict[str, Any]]:
    """By label, from the first seed's run."""
    return {name: _row(runs[0], topologies[name]) for name, runs in records.items() if runs}


def _row(run: Record, topology: Topology) -> dict[str, Any]:
    result = run.result
    traffic = actor_traffic(topology, _rates(run.task.run_dir, topology))
    waits = {kind: shares.get("wait") for kind, shares in result.stage_shares.items()}
    return {
        "bytes_up_per_env_step": traffic.up,
        "bytes_down_per_env_step": traffic.down,
        "waits": waits,
        "policy_lag": result.policy_lag.get("mean"),
        "env_steps_per_second": result.env_steps_per_second,
        "command": run.task.command,
    }


def _rates(run_dir: Path, topology: Topology) -> dict[str, dict[str, float]]:
    """Counters per second by kind, laid on the first node of each kind."""
    status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
    rates = status.get("rates", {})
    return {nodes[0].name: rates.get(kind, {}) for kind, nodes in topology.kinds().items()}


def write_evidence(path: Path, rows: dict[str, dict[str, Any]], env: str, command: str) -> None:
    document = {"env": env, "command": command, "machine": machine(), "systems": rows}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def table(rows: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Header and one line per system."""
    return [list(_HEADER), *([name, *cells(row)] for name, row in rows.items())]


def cells(row: dict[str, Any]) -> list[str]:
    waits = row["waits"]
    actors = next((waits[kind] for kind in ("actor", "agent") if kind in waits), None)
    learners = next((waits[kind] for kind in ("learner", "trainer") if kind in waits), None)
    lag, rate = row["policy_lag"], row["env_steps_per_second"]
    return [
        f"{row['bytes_up_per_env_step']:,.0f}",
        f"{row['bytes_down_per_env_step']:,.0f}",
        *("-" if share is None else f"{share:.0%}" for share in (actors, learners)),
        "-" if lag is None else f"{lag:.1f}",
        "-" if rate is None else f"{rate:,.0f}",
    ]
