# SPDX-License-Identifier: Apache-2.0
"""What gpu_scores.jsonl and gpu_learner.json say, as a section of docs/scores.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
_INTRODUCTION = """## On one GPU

`python benchmarks/gpu_scores.py` trains on ALE/Pong-v5 with sticky actions (0.25) and keeps a
checkpoint every few seconds, each of which then plays 20 fresh episodes. Each line is one seed, so
it shows a pace and is no score to compare. Other options: `benchmarks/results/gpu_scores.jsonl`.
"""
_SHOWN_OPTIONS = 3
_CLEARLY_LEARNED = -10.0


def section(results: Path = RESULTS) -> str:
    parts = [_INTRODUCTION]
    runs = results / "gpu_scores.jsonl"
    if runs.exists():
        lines = runs.read_text(encoding="utf-8").splitlines()
        parts.append(_scores([json.loads(line) for line in lines]))
    pong = results / "gpu_pong.jsonl"
    if pong.exists():
        lines = pong.read_text(encoding="utf-8").splitlines()
        parts.append(_pong([json.loads(line) for line in lines]))
    curves = results / "gpu_pong_curves.jsonl"
    if curves.exists():
        lines = curves.read_text(encoding="utf-8").splitlines()
        parts.append(_curves([json.loads(line) for line in lines]))
    learner = results / "gpu_learner.json"
    if learner.exists():
        parts.append(_learner(json.loads(learner.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _scores(runs: list[dict[str, Any]]) -> str:
    head = ("options", "seconds", "last score", "env steps/s", "mean lag")
    rows = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for run in runs:
        known = [c for c in run["checkpoints"] if c["mean"] is not None]
        if known and _options(run["command"]).endswith("defaults"):
            result = run["result"]
            rows.append(
                f"| {_options(run['command'])} | {known[-1]['seconds']:.0f} |"
                f" {known[-1]['mean']:.1f} | {result['env_steps_per_second']:,.0f} |"
                f" {result['policy_lag']['mean']:.1f} |"
            )
    return "\n".join([*rows, "", _machine(runs[-1]["machine"])])


def _pong(runs: list[dict[str, Any]]) -> str:
    """Seconds until 20 fresh episodes reach the target, of each seed."""
    lines = [
        "Pong without sticky actions, the defaults of `sebulba` on the same machine"
        f" (`{runs[0]['command']}`, then other seeds); seconds from the start of the process until"
        " the checkpoint was written:\n",
        "| seed | first with 20, seconds | its score | last score | env steps/s | lag |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        result, first = run["result"], "- | -"
        if reached := run["reached"]:
            first = f"{reached['seconds']:.0f} | {reached['mean']:.1f}"
        known = [c for c in run["checkpoints"] if c["mean"] is not None]
        lines.append(
            f"| {run['seed']} | {first} | {known[-1]['mean']:.1f}"
            f" | {result['env_steps_per_second']:,.0f} | {result['policy_lag']['mean']:.1f} |"
        )
    lines.append(
        "\nThe first of several checkpoints that reach 20 is an optimistic choice: the rate does"
        " not decay, and a score may fall again, as the last ones show.\n"
    )
    return "\n".join(lines)


def _curves(runs: list[dict[str, Any]]) -> str:
    lines = [
        "Whether other systems learn this task at all, with about what became their preset `atari`:"
        " training episodes of one seed each, which are no scores to compare.\n",
        "| system | cores | env steps | seconds | mean of 100 | env steps to -10 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        last = run["curve"][-1]
        name = run["command"].split()[2]
        above = [p for p in run["curve"] if (p["return/mean_100"] or -21.0) >= _CLEARLY_LEARNED]
        first = f"{above[0]['env_steps']:,}" if above else "-"
        lines.append(
            f"| `{name}` | {run['cores'].split(' cores')[0].split(' of')[0]} |"
            f" {last['env_steps']:,} | {last['s']:.0f} | {last['return/mean_100']:.1f} | {first} |"
        )
    return "\n".join([*lines, ""])


def _options(command: str) -> str:
    """The architecture, and the first options that are not common to all runs."""
    words = command.split()
    name = words[words.index("train") + 1]
    pairs = command.partition(name)[2].split(" --")[1:]
    own = [p for p in pairs if p.split()[0] not in ("env", "seed", "max-seconds")]
    shown = ", ".join(f"`{pair}`" for pair in own[:_SHOWN_OPTIONS]) or "defaults"
    left_out = len(own) - _SHOWN_OPTIONS
    return f"`{name}`: {shown}" + (f" and {left_out} more" if left_out > 0 else "")


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
        "\nThe learner alone, beside a bare loop that makes the same PPO update as one CUDA graph"
        " over data on the device. The learner also uploads batches, computes targets and publishes"
        " weights (`python benchmarks/gpu_learner.py`).\n"
    )
    return "\n".join([words, *rows, "", _machine(document["machine"])])


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores of {machine['cpu']} with one {machine['gpu']}, torch"
        f" {machine['versions']['torch']}, commit {machine['commit']}.\n"
    )
