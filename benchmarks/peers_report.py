# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/results/peers.json says: medians, ratios to the best peer, tables and pages."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
FIGURE = ROOT / "docs" / "peers.png"
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
GOALS = {
    "CartPole-v1 steps": 10.0,
    "CartPole-v1 time": 0.25,
    "ALE/Pong-v5 steps": 1.4,
    "ALE/Pong-v5 of ceiling": 0.85,
}
NAMES = {
    "veldt": "Veldt",
    "sb3": "Stable-Baselines3",
    "sample_factory": "Sample Factory",
    "rllib": "RLlib",
}
HEADER = ("contestant", "envs", "trained steps/s", "samples/s", "start s", "s to target",
          "reached", "peak MB")  # fmt: skip
Document = dict[str, Any]


def label(name: str) -> str:
    framework, _, setting = name.partition(" ")
    return f"{NAMES.get(framework, framework)} {setting}"


def in_words(run: dict[str, Any]) -> str:
    """One finished run in a line."""
    if "error" in run:
        return f"FAILED, {run['error']}"
    memory = f"{run['peak_memory_mb'] or math.nan:,.0f} MB"
    if run["mode"] == "rate":
        return f"{run['steps_per_second'] or math.nan:,.0f} steps/s, {memory}"
    seconds = run["seconds_to_target"]
    if seconds is None:
        return f"not in {run['conditions']['limit']:.0f} s, {memory}"
    return f"{seconds:.1f} s to {run['conditions']['target']:g}, {memory}"


def _median(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def _entry(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One contestant. Rates come from rate runs only: a run that ends at a score ends too soon."""
    rates = [run for run in runs if run["mode"] == "rate"]
    scores = [run for run in runs if run["mode"] == "score"]
    times = [r["seconds_to_target"] for r in scores]
    # A seed that never arrived is later than any that did; so may the median be.
    median = statistics.median(math.inf if t is None else t for t in times) if times else math.inf
    return {
        "envs": runs[0].get("envs"),
        "steps_per_second": _median(rates, "steps_per_second"),
        "samples_per_second": _median(rates, "samples_per_second"),
        "start_seconds": _median(runs, "start_seconds"),
        "seconds_to_target": median if math.isfinite(median) else None,
        "seeds_at_target": sum(t is not None for t in times),
        "seeds": len(scores) or len(rates),
        "scored": bool(scores),
        "limit": max((r["conditions"]["limit"] for r in scores), default=None),
        "peak_memory_mb": max((r.get("peak_memory_mb") or 0 for r in runs), default=0) or None,
    }


def summary(document: Document) -> Document:
    """Medians by environment and contestant, and how Veldt's best stands to the best peer."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in document["runs"]:
        if "error" not in run:
            name = f"{run['framework']} {run['setting']}"
            groups.setdefault(run["env"], {}).setdefault(name, []).append(run)
    medians = {
        env: {name: _entry(runs) for name, runs in found.items()} for env, found in groups.items()
    }
    ratios: dict[str, Any] = {}
    for env, entries in medians.items():
        ratios |= _ratios(env, entries)
    ceiling = ceilings(document.get("step_costs"))
    best = _best(medians.get("ALE/Pong-v5", {}), "steps_per_second", max, True)
    if ceiling and best:
        ratios["ALE/Pong-v5 of ceiling"] = best[1] / ceiling["alone"]
        ratios["ALE/Pong-v5 of ceiling, all cores busy"] = best[1] / ceiling["all_cores"]
    return {"medians": medians, "ratios": ratios, "goals": GOALS, "ceiling": ceiling}


def _best(entries: Document, key: str, choose: Any, ours: bool) -> tuple[str, float] | None:
    """Name and value of the best of ours or of the peers."""
    mine = {n: e[key] for n, e in entries.items() if n.startswith("veldt ") == ours and e[key]}
    return choose(mine.items(), key=lambda item: item[1]) if mine else None


def _ratios(env: str, entries: Document) -> dict[str, float]:
    found = {}
    for short, key, choose in (("steps", "steps_per_second", max),
                               ("time", "seconds_to_target", min)):  # fmt: skip
        ours, theirs = (_best(entries, key, choose, side) for side in (True, False))
        if ours and theirs:
            found[f"{env} {short}"] = ours[1] / theirs[1]
    return found


def ceilings(costs: Document | None) -> Document | None:
    """Steps/s of all cores if each did nothing but one of the three works at any time."""
    if not costs:
        return None
    cores = next(iter(costs.values()))["cores"]
    return {kind: cores / sum(_medians(costs, kind).values()) for kind in ("alone", "all_cores")}


def _medians(costs: Document, kind: str) -> dict[str, float]:
    """CPU seconds of each work per step, over the seeds."""
    return {
        work: statistics.median(of_seed[kind][work] for of_seed in costs.values())
        for work in ("env", "inference", "training")
    }


def verdicts(document: Document) -> list[str]:
    """Each goal beside what was measured."""
    texts = {
        "CartPole-v1 steps": "CartPole-v1: best trained steps/s over the best peer's",
        "CartPole-v1 time": "CartPole-v1: best time to the target over the best peer's",
        "ALE/Pong-v5 steps": "ALE/Pong-v5: best trained steps/s over the best peer's",
        "ALE/Pong-v5 of ceiling": "ALE/Pong-v5: best trained steps/s over the ceiling",
    }
    lines = []
    for key, text in texts.items():
        value, goal = document["ratios"].get(key), GOALS[key]
        side = "or less" if key.endswith("time") else "or more"
        shown = "not measured" if value is None else f"{value:.2f}"
        lines.append(f"{text}: {shown} (goal: {goal:g} {side})")
    return lines


def tables(document: Document) -> list[tuple[str, tuple[str, ...], list[tuple[Any, ...]]]]:
    """Title, header and rows per environment, fastest first."""
    found = []
    for env, entries in document["medians"].items():
        order = sorted(entries, key=lambda name: -(entries[name]["steps_per_second"] or 0.0))
        rows = [(label(name), *_cells(entries[name])) for name in order]
        found.append((env, HEADER, rows))
    return found


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    def number(key: str, digits: int = 0) -> str:
        return "-" if entry[key] is None else f"{entry[key]:,.{digits}f}"

    time = number("seconds_to_target", 1)
    if entry["scored"] and entry["seconds_to_target"] is None:
        time = f"> {entry['limit']:.0f}"
    reached = f"{entry['seeds_at_target']}/{entry['seeds']}" if entry["scored"] else "-"
    rates = number("steps_per_second"), number("samples_per_second")
    return (number("envs"), *rates, number("start_seconds", 1), time, reached,
            number("peak_memory_mb"))  # fmt: skip


_INTRODUCTION = """# Other frameworks

This page compares the speed of Veldt with Stable-Baselines3, Sample Factory and RLlib.

`make bench-peers` installs them into environments of their own under `.peers/`
(`benchmarks/peers/*.txt`) and measures one after another: about 35 minutes on two cores. An
interrupted call continues. Settings are in `benchmarks/peers/run_*.py`, the commands of all runs in
`benchmarks/results/peers.json`.

- **A trained step** is one environment transition (after frame skip) that reached the learner,
  counted once. **Samples** count every use. Rates are over a fixed window after the first update.
- **Start** is from process start to the first environment step.
- **Time to target** ends when the last 100 training episodes and then 20 fresh greedy episodes have
  a mean of 475. A seed that does not get there counts as later than any that does.
- **Memory** is the largest proportional set size of the process tree, sampled every 3 seconds.
- Values are medians over seeds; one torch thread per process, except `threads` and `serial16`.
- **CartPole-v1**: each peer has a usual setting and one chosen for speed on two cores. The peers
  step single environments written in Python; "single environments" shows Veldt with these, the
  table below with Gymnasium's vectorised one.
- **ALE/Pong-v5**: 84x84 grey, 4 stacked frames, frame skip 4, the Nature network, one pass over the
  data; only the rate is measured. **The ceiling** is cores / (CPU seconds per step of environment +
  inference + training), each measured alone.

## Measured
"""


def overview(document: Document, plain: str) -> str:
    """One row per framework with the best of its settings."""
    lines = ["| best setting of each, trained steps/s | ALE/Pong-v5 |"
             " CartPole-v1, single environments | CartPole-v1, vectorised | seconds to 475 |"
             " start (s) |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for framework, name in NAMES.items():
        rate = _best_cell(document, framework, "CartPole-v1", "steps_per_second", max, 0)
        is_own = framework == "veldt"
        cells = [
            _best_cell(document, framework, "ALE/Pong-v5", "steps_per_second", max, 0),
            plain if is_own else rate,
            rate if is_own else "-",
            _best_cell(document, framework, "CartPole-v1", "seconds_to_target", min, 1),
            _best_cell(document, framework, "CartPole-v1", "start_seconds", min, 1),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plain_rate(path: Path) -> str:
    """Of the faster system where Veldt, too, steps single Python environments."""
    if not path.exists():
        return "-"
    medians = json.loads(path.read_text(encoding="utf-8"))["medians"]
    return f"{max(medians.values()):,.0f}"


def _best_cell(
    document: Document, framework: str, env: str, key: str, choose: Any, digits: int
) -> str:
    entries = document["medians"].get(env, {})
    mine = [e for name, e in entries.items() if name.startswith(f"{framework} ")]
    known = [e[key] for e in mine if e[key] is not None]
    if known:
        return f"{choose(known):,.{digits}f}"
    limits = [e["limit"] for e in mine if e["limit"] is not None]
    return f"> {max(limits):.0f}" if limits and key == "seconds_to_target" else "-"


def page(results: Path = RESULTS, figure: Path = FIGURE) -> str:
    """docs/peers.md."""
    if results.exists():
        plain = plain_rate(results.with_name("plain_environments.json"))
        block = _measured(json.loads(results.read_text(encoding="utf-8")), plain, figure)
    else:
        block = "Not measured yet: `make bench-peers`, then `python docs/generate.py`."
    return f"{_INTRODUCTION}\n{BEGIN}\n{block}\n{END}\n"


def _measured(document: Document, plain: str, figure: Path) -> str:
    parts = [overview(document, plain)]
    if figure.exists():
        parts.append(f"![Trained steps per second and time to target]({figure.name})")
    for title, header, rows in tables(document):
        lines = [header, ("---",) * len(header), *rows]
        parts.append(
            f"**{title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)
        )
    parts.append("\n".join(f"- {line}" for line in verdicts(document)))
    costs, ceiling = document.get("step_costs"), document.get("ceiling")
    if costs and ceiling:
        parts.append(_ceiling_text(costs, ceiling))
    machine = document["machine"]
    versions = "; ".join(
        f"{NAMES[name]}: " + ", ".join(f"{k} {v}" for k, v in found.items())
        for name, found in document["versions"].items()
    )
    parts.append(
        f"`{machine['command']}` on {machine['cores']} cores of {machine['cpu']}, load"
        f" {machine['load_average_before']} before it, Python {machine['python']}, commit"
        f" {machine['commit']}. {versions}."
    )
    return "\n\n".join(parts)


def _ceiling_text(costs: Document, ceiling: Document) -> str:
    lines = []
    for kind, words in (("alone", "alone"), ("all_cores", "with all cores busy")):
        found = _medians(costs, kind)
        each = ", ".join(f"{work} {1e6 * cost:.0f}" for work, cost in found.items())
        lines.append(
            f"Pong, microseconds per step {words}: {each}; ceiling {ceiling[kind]:,.0f} steps/s."
        )
    return "  \n".join(lines)
