# SPDX-License-Identifier: Apache-2.0
"""Prioritized replay against cpprb, TorchRL and Reverb, one process and one thread each.

`python benchmarks/replay.py [--quick] [--skip-peers]`. One million transitions of CartPole's size
and 50,000 of four 84x84 frames: add 64, sample 512, update 512. Every contestant runs several
times, in turns, by its thread's own time (Reverb: by the clock); its best round counts, since a
shared machine only ever slows a run down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import replay_peers
from measuring import ROOT, machine, print_table, save

SCRIPT = Path(__file__).with_name("replay_contestants.py")
CASES = ("vector", "frames")
SHARES = {"reverb": 0.1}  # Reverb takes one item per call: filling it whole would take minutes
RATES = ("adds", "samples", "updates", "sample_update", "cycles")


def measure(
    python: Path, contestant: str, case: str, seconds: float, share: float
) -> dict[str, Any]:
    """One round in a process of its own; {"error": ...} if it fails."""
    share = min(share, SHARES.get(contestant, 1.0))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    command = [str(python), "-W", "ignore", str(SCRIPT), contestant, case, str(seconds), str(share)]
    done = subprocess.run(
        command,
        env={**os.environ, **threads, "PYTHONPATH": str(ROOT) if contestant == "veldt" else ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines() or ["no message"]
        return {"error": words[-1][:300]}
    return json.loads(lines[-1])


def best_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    good = [one for one in rounds if "error" not in one]
    if not good:
        return rounds[0]
    best = {f"{rate}_per_second": max(one[f"{rate}_per_second"] for one in good) for rate in RATES}
    memory = min(one["memory_mb"] for one in good)
    return {**best, "memory_mb": memory, "items": good[0]["items"], "rounds": len(good)}


def contestants(skip_peers: bool) -> tuple[dict[str, Path], dict[str, str], dict[str, str]]:
    """Name -> the Python to run it with, notes on those that failed or were mended, versions."""
    found = {"veldt": Path(sys.executable)}
    notes: dict[str, str] = {}
    versions: dict[str, str] = {}
    for peer in () if skip_peers else replay_peers.ALL:
        print(f"preparing {peer.name} ...", flush=True)
        try:
            python, note = replay_peers.prepare(peer)
        except (RuntimeError, subprocess.SubprocessError, OSError) as problem:
            notes[peer.name] = str(problem)[:300]
            continue
        found |= dict.fromkeys(peer.contestants, python)
        versions[peer.name] = replay_peers.version(python, peer.distribution)
        if note:
            notes[peer.name] = note
    return found, notes, versions


def verdict(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ours over the fastest peer, and our memory over the smallest plain one."""
    key = "sample_update_per_second"
    peers = {name: one for name, one in results.items() if name != "veldt" and key in one}
    ours = results["veldt"]
    if not peers or key not in ours:
        return {}
    fastest = max(peers, key=lambda name: peers[name][key])
    filled = {name: one for name, one in peers.items() if one["items"] == ours["items"]}
    memory = {name: ours["memory_mb"] / one["memory_mb"] for name, one in filled.items()}
    speed = ours[key] / peers[fastest][key]
    return {"fastest_peer": fastest, "speed_ratio": speed, "memory_ratio": memory}


def report(case: str, results: dict[str, dict[str, Any]]) -> None:
    print(f"\n{case}: best of rounds")
    header = ("library", "items", *(f"{rate}/s" for rate in RATES), "memory MB")
    rows: list[tuple[object, ...]] = []
    for name, one in results.items():
        if "error" in one:
            rows.append((name, one["error"][:60], *[""] * (len(header) - 2)))
            continue
        rates = (round(one[f"{rate}_per_second"]) for rate in RATES)
        rows.append((name, one["items"], *rates, round(one["memory_mb"])))
    print_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, stores a tenth full")
    parser.add_argument("--skip-peers", action="store_true")
    options = parser.parse_args()
    rounds, seconds, share = (1, 0.3, 0.1) if options.quick else (3, 1.0, 1.0)
    where = machine()
    pythons, notes, versions = contestants(options.skip_peers)
    payload: dict[str, Any] = {"machine": where, "peers": versions, "notes": notes}
    for case in CASES:
        collected: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for name, python in pythons.items():
                if case == "vector" and name == "cpprb_compressed":
                    continue
                one = measure(python, name, case, seconds, share)
                collected.setdefault(name, []).append(one)
        results = {name: best_of(many) for name, many in collected.items()}
        payload[case] = {"results": results, "verdict": verdict(results)}
        report(case, results)
        print(payload[case]["verdict"])
    for name, note in notes.items():
        print(f"{name}: {note}")
    if not (options.quick or options.skip_peers):
        print(save("replay", payload))


if __name__ == "__main__":
    main()
