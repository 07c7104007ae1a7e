# SPDX-License-Identifier: Apache-2.0
"""What gpu_scores.jsonl and gpu_learner.json say, as a section of docs/scores.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
_INTRODUCTION = """## On one GPU

`python benchmarks/gpu_scores.py` trains for a given time, with defaults but for the options that a
line names, and keeps a checkpoint every few seconds. Afterwards each checkpoint plays 20 fresh
episodes without exploration: whole games, raw rewards, for Atari with sticky actions (0.25). Its
seconds count from the start of the process until its files were there; the time of these
evaluations is not counted. A line is one seed: it shows a curve and a pace, and is no score to
compare by. Busy are the learner and the policy worker, which share the GPU: in turns, or at once
with NVIDIA's MPS daemon.
"""


def section(results: Path = RESULTS) -> str:
    parts = [_INTRODUCTION]
    runs = results / "gpu_scores.jsonl"
    if runs.exists():
        lines = runs.read_text(encoding="utf-8").splitlines()
        parts.append(_scores([json.loads(line) for line in lines]))
    learner = results / "gpu_learner.json"
    if learner.exists():
        parts.append(_learner(json.loads(learner.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _scores(runs: list[dict[str, Any]]) -> str:
    head = ("command", "target", "reached after", "score over seconds", "first env step",
            "env steps/s", "mean lag", "busy", "GPU shared")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for run in runs:
        reached, result = run["reached"], run["result"]
        known = [c for c in run["checkpoints"] if c["mean"] is not None]
        when = "not" if known else "not evaluated"
        if reached:
            when = f"{reached['seconds']:.0f} s, {reached['env_steps']:,} steps"
        curve = ", ".join(f"{c['seconds']:.0f} s {c['mean']:.1f}" for c in known)
        rate, lag = result["env_steps_per_second"], result["policy_lag"]["mean"]
        last = run["curve"][-1]
        busy = ", ".join(f"{last[f'busy/{node}']:.0%}" for node in ("learner", "policy_worker"))
        rows.append(
            f"| `{run['command']}` | {run['target']:g} | {when} | {curve} |"
            f" {result['start_seconds']:.1f} s | {rate:,.0f} | {lag:.1f} | {busy} |"
            f" {'MPS' if run['machine']['mps'] else 'in turns'} |"
        )
    machines = dict.fromkeys(_machine(run["machine"]) for run in runs)
    return "\n".join([*rows, "", *machines])


def _learner(document: dict[str, Any]) -> str:
    rows = ["| network | rows of a minibatch | learner, samples/s | bare loop | ratio |",
            "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for case in document["cases"]:
        bare = sum(case["bare"]) / len(case["bare"])
        rows.append(
            f"| {case['network']} | {case['rows']:,} | {case['ours']:,.0f} | {bare:,.0f} |"
            f" {case['ratio']:.2f} |"
        )
    words = (
        "\nThe learner alone, beside a bare loop over data that lies on the device: the same"
        " network's PPO update as one CUDA graph in bfloat16. The learner also uploads each batch,"
        " computes targets, shuffles, checks and publishes. The bare deep ResNet does without one"
        " thing that ours does: images filled up to 8 channels, for the tensor cores.\n"
    )
    return "\n".join([words, *rows, "", _machine(document["machine"])])


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    return (
        f"`{machine['command']}` on {machine['cores']} cores of {machine['cpu']} with one"
        f" {machine['gpu']}, Python {machine['python']}, {versions}, commit {machine['commit']}.\n"
    )
