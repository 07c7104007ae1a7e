# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/results/scores.json says: medians, intervals, and the pages that show them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veldt.reports.statistics import estimate

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scores.json"
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
HEADER = ("contestant", "reached", "seconds to target: median", "IQM (95%)", "steps: median",
          "steps: IQM (95%)", "last evaluation: IQM (95%)")  # fmt: skip
SCORE_HEADER = ("contestant", "seeds", "evaluation: median", "IQM (95%)",
                "last 100 training episodes: IQM (95%)",
                "seconds: median", "IQM (95%)")  # fmt: skip
MOST_LOAD_PER_CORE = 1.5  # before a run; the one before it leaves about one per core behind
FEWEST_SEEDS = 3  # for the first screen
CORES_OF_A_TIMED_RUN = 2  # one that had fewer shared them: its steps count, its seconds do not
Run = dict[str, Any]
Document = dict[str, Any]


def in_words(run: Run) -> str:
    """One finished run in a few words."""
    name = run["contestant"]
    if "error" in run:
        return f"{name}: FAILED, {run['error']}"
    if run["target"] is None:
        values = (f"{run[which]:.1f}" for which in ("evaluation_return", "mean_return_100"))
        steps, seconds = run["env_steps"], run["wall_seconds"]
        return f"{name}: {' evaluated, training '.join(values)}, {steps:,} steps, {seconds:.0f} s"
    if run["reached"]:
        steps, seconds = run["env_steps_to_target"], run["seconds_to_target"]
        return f"{name}: {seconds:.1f} s, {steps:,} steps"
    value = run["evaluation_return"]
    shown = "-" if value is None else f"{value:.1f}"
    return f"{name}: not in {run['wall_seconds']:.0f} s, {run['env_steps']:,} steps ({shown})"


def summary(runs: list[Run], order: Sequence[str] = ()) -> Document:
    """By task, in this order, and contestant. Where a seed was run again, its last run counts; one
    that was made with other constants than those of today is marked `superseded` and does not."""
    counted = [run for run in runs if not run.get("superseded")]
    latest = {(r["task"], r["contestant"], r["seed"]): r for r in counted}
    machines = [run["machine"] for run in latest.values()]
    commands = list(dict.fromkeys(machine["command"] for machine in machines))
    entries: dict[str, dict[str, Any]] = {}
    for task, contestant in dict.fromkeys((t, c) for t, c, _ in latest):
        own = [r for (t, c, _), r in latest.items() if (t, c) == (task, contestant)]
        entries.setdefault(task, {})[contestant] = _entry([r for r in own if "error" not in r])
    return {
        "machine": {**(machines[-1] if machines else {}), "commands": commands},
        "commits": sorted({machine["commit"] for machine in machines}),
        "tasks": {task: entries[task] for task in (*order, *entries) if task in entries},
        "runs": [_without_machine(run) for run in latest.values()],
    }


def _without_machine(run: Run) -> Run:
    return {name: value for name, value in run.items() if name != "machine"}


def _entry(runs: list[Run]) -> dict[str, Any]:
    """Seeds that did not reach the target count with their limit, so they cannot flatter; seconds
    are those of runs that had the cores for it. Without a target, they are those that the steps
    asked for took."""
    if runs and runs[0]["target"] is None:
        return _score_entry(runs)
    timed = [r for r in runs if _had_its_cores(r)]
    seconds = [r["seconds_to_target"] if r["reached"] else r["max_seconds"] for r in timed]
    steps = [r["env_steps_to_target"] if r["reached"] else r["env_steps"] for r in runs]
    returns = [r["evaluation_return"] for r in runs if r["evaluation_return"] is not None]
    return {
        "seeds": len(runs),
        "reached": sum(r["reached"] for r in runs),
        "target": runs[0]["target"] if runs else None,
        "max_seconds": max((r["max_seconds"] for r in runs), default=None),
        "seconds": _spread(seconds),
        "steps": _spread(steps),
        "evaluation": _spread(returns),
        "preset": (runs[0].get("chosen") or {}).get("preset") if runs else None,
    }


def _had_its_cores(run: Run) -> bool:
    """`untimed`: other work went on beside it, or its rivals ran on a day of another pace."""
    return run["cores"] >= CORES_OF_A_TIMED_RUN and not run.get("untimed")


def _score_entry(runs: list[Run]) -> dict[str, Any]:
    """A run that was cut off before its steps has no score to compare, and one that began on a busy
    machine no time: what it learned from its steps does not depend on that."""
    whole = [run for run in runs if run["env_steps"] >= run["steps_asked"]]
    alone = [run for run in whole if _had_its_cores(run)]
    quiet = [run for run in alone if run["load_before"] <= MOST_LOAD_PER_CORE * run["cores"]]
    return {
        "seeds": len(whole),
        "target": None,
        "steps_asked": runs[0]["steps_asked"],
        "seconds": _spread([run["wall_seconds"] for run in quiet]),
        "evaluation": _spread([run["evaluation_return"] for run in whole]),
        "training": _spread([run["mean_return_100"] for run in whole]),
        "preset": (runs[0].get("chosen") or {}).get("preset"),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = estimate(np.asarray(values, dtype=np.float64))
    return {
        "median": float(statistics.median(values)),
        "iqm": float(found.value),
        "low": float(found.low),
        "high": float(found.high),
    }


def rows(entries: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of one task, quickest first; those last that most seeds did not reach the target with.
    Without a target, the best first."""
    if not _has_target(entries):
        best = sorted(
            entries.items(), key=lambda item: -(item[1]["evaluation"] or {}).get("iqm", 0)
        )
        return [_score_row(name, entry) for name, entry in best]

    def order(item: tuple[str, Any]) -> tuple[bool, float]:
        entry = item[1]
        return 2 * entry["reached"] <= entry["seeds"], _order(entry)

    return [_row(name, entry) for name, entry in sorted(entries.items(), key=order)]


def _order(entry: dict[str, Any]) -> float:
    """By seconds, or where none were taken, by steps."""
    return float((entry["seconds"] or entry["steps"] or {"median": 1e9})["median"])


def _has_target(entries: dict[str, Any]) -> bool:
    return next(iter(entries.values()))["target"] is not None


def _score_row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"`{name}`",
        str(entry["seeds"]),
        _median(entry["evaluation"], 1, late=False),
        _interval(entry["evaluation"], 1, entry["seeds"]),
        _interval(entry["training"], 1, entry["seeds"]),
        _median(entry["seconds"], 0, late=False),
        _interval(entry["seconds"], 0, entry["seeds"]),
    )


def _row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    late = 2 * entry["reached"] <= entry["seeds"]
    return (
        f"`{name}`",
        f"{entry['reached']} of {entry['seeds']}",
        _median(entry["seconds"], 1, late),
        _interval(entry["seconds"], 1, entry["seeds"]),
        _median(entry["steps"], 0, late),
        _interval(entry["steps"], 0, entry["seeds"]),
        _interval(entry["evaluation"], 1, entry["seeds"]),
    )


def _median(spread: dict[str, float] | None, digits: int, late: bool) -> str:
    if spread is None:
        return "-"
    return f"{'> ' if late else ''}{spread['median']:,.{digits}f}"


def _interval(spread: dict[str, float] | None, digits: int, seeds: int) -> str:
    if spread is None:
        return "-"
    if seeds == 1:
        return f"{spread['iqm']:,.{digits}f} (one seed)"
    low, high = (f"{spread[name]:,.{digits}f}" for name in ("low", "high"))
    return f"{spread['iqm']:,.{digits}f} ({low} to {high})"


def text_lines(document: Document) -> list[str]:
    lines = []
    for task, entries in document["tasks"].items():
        lines += ["", task, *("  ".join(row) for row in rows(entries))]
    return lines


_INTRODUCTION = """\
# Scores: what is solved, and how soon

<!-- Generated by docs/generate.py from benchmarks/results/scores.json. -->

`python benchmarks/scores.py` trains with defaults: `--env`, a target and a limit of seconds, and
nothing else but what the task itself needs (`--recurrent lstm` where something must be remembered).
For MinAtar the end is a number of steps, and what counts is the score then.
Each run has two cores and the process backend. The preset follows from the spaces of the
environment; every run prints and records which one it was.

- **Reached** means that 20 fresh episodes without exploration have a mean of the target: those
  played once the last 100 training episodes have it, or two rounds in a row of those played every
  few seconds. Steps and seconds are counted until then, from the start of the process.
- **Stable-Baselines3** is held to the same rule, with the settings of rl-baselines3-zoo, or its own
  defaults where the zoo has none. The time that its evaluations take is not counted; Veldt's is.
- **Score after so many steps**: the mean of 20 fresh episodes without exploration once they are
  done, and of the last 100 training episodes. MinAtar has its sticky actions and its ramp of
  difficulty. The zoo has no settings for it: `ppo` has those for Atari, `ppo_defaults` has
  Stable-Baselines3's own, and both the network of MinAtar's paper (16 kernels of 3x3, 128 units),
  which is Veldt's too. Seconds are those of runs that had the machine to themselves; others have
  none. Nobody tuned them for these games, while `[grids]` of `a2c` was chosen on
  seeds 10 and 11 of the same four; beside settings made for MinAtar the distance may be smaller.
  To be beaten is the better of the two. Where `ppo_defaults` has no row it has not been run to the
  end yet; on Breakout one run of it was beyond what `ppo` ends with after a tenth of the steps.
- A seed that did not reach the target counts with its limit. IQM is the interquartile mean over
  seeds, with a bootstrap interval of 95%.
- Runs come from the calls named below the tables, on machines of one kind with two cores in all:
  one run at a time and nothing beside it, but for HalfCheetah and MinAtar's seeds from 1 on. There
  two went on side by side with a core each (HalfCheetah, `ppo`) or other work did (`a2c`), so that
  steps and scores count and seconds are left out. A seed that was run again counts with its last
  run.
  `benchmarks/results/scores.jsonl` has these, those with other constants than today's and those of
  another machine, which do not count here.
- Beside Stable-Baselines3 in one call, seed by seed: Acrobot, LunarLander and Hopper; in another,
  CartPole, Pendulum and MountainCarContinuous, but for `sac` on Pendulum, which is of the first.
  Each run had 90 seconds. Left out there is what reached its target with none of five seeds on the
  other machine: `dqn` on Acrobot (60 s) and LunarLander (120 s), `sac` on MountainCarContinuous
  (120 s); and `sac` on Hopper, which takes no step of learning before its 10,000th env step.
- The machine's pace differs between days, by two or three times. MinAtar's seconds are those of
  seed 0, both contestants one after the other in one call, on another day than the rest. `ppo` has
  one thread there: with two it was not faster.
- What is tuned: the constants of `[continuous]` and `[small_images]` were chosen on seeds 10 to 13
  of Pendulum, Hopper, MountainCarContinuous and NestedDict, those of `[continuous_wide]` of `a2c`
  and `sample_factory` on seeds 10 to 13 of Hopper, among ten variants, and the share of noise of
  `sample_factory` on seeds 20 to 24 of MountainCarContinuous and Pendulum; all are reported on
  seeds 0 to 4 of the same tasks. LunarLanderContinuous had a part in one choice: where
  `[continuous_wide]` begins (seeds 10 and 11). One was chosen otherwise: `apex` learns from its
  500th transition on, since with 100 seed 3 of MountainCarContinuous did not get
  there. `[continuous_wide]` of `apex` has SAC's published constants.

## Measured
"""


def page(results: Path = RESULTS) -> str:
    """docs/scores.md."""
    block = "Not measured yet: `python benchmarks/scores.py`, then `python docs/generate.py`."
    if results.exists():
        block = _measured(json.loads(results.read_text(encoding="utf-8")))
    return f"{_INTRODUCTION}\n{BEGIN}\n{block}\n{END}\n"


def _measured(document: Document) -> str:
    parts = []
    for task, entries in document["tasks"].items():
        first = next(iter(entries.values()))
        if first["target"] is None:
            title, header = f"score after {first['steps_asked']:,} steps", SCORE_HEADER
        else:
            title, header = f"{first['target']:g}", HEADER
        parts += [f"### {task}: {title}", _table(header, rows(entries))]
    names = [name for entries in document["tasks"].values() for name in entries]
    if not any(name.startswith("sb3") for name in names):
        parts.append("Stable-Baselines3 was not measured on this machine yet.")
    return "\n\n".join([*parts, _provenance(document)])


def _provenance(document: Document) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    commands = ", ".join(f"`{command}`" for command in machine["commands"])
    commits = " ".join(document["commits"])
    return (
        f"{commands} on {machine['cores']} cores of {machine['cpu']}, Python {machine['python']},"
        f" {versions}, commit {commits}."
    )


def _table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    every = [header, ("---",) * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)


def readme_block(results: Path = RESULTS) -> str:
    """The quickest of each framework to solve each task with all seeds, for README.md; empty where
    no task has been measured with a few seeds."""
    if not results.exists():
        return ""
    document = json.loads(results.read_text(encoding="utf-8"))
    tasks = {
        task: entries
        for task, entries in document["tasks"].items()
        if _has_target(entries) and _seeds(entries) >= FEWEST_SEEDS
    }
    if not tasks:
        return ""
    header = ("task (target)", "Veldt, defaults", "seconds", "steps")
    has_peer = any(name.startswith("sb3") for entries in tasks.values() for name in entries)
    if has_peer:
        header += ("Stable-Baselines3, rl-zoo", "seconds", "steps")
    lines = []
    for task, entries in tasks.items():
        target = next(iter(entries.values()))["target"]
        peer = _best(entries, "sb3") if has_peer else ()
        lines.append((f"{task} ({target:g})", *_best(entries, "veldt"), *peer))
    seeds = max(_seeds(entries) for entries in tasks.values())
    machine = document["machine"]
    return (
        f"{_table(header, lines)}\n\nTime to solve: medians over up to {seeds} seeds, two cores of"
        f" {machine['cpu']} for each run, from process start to fresh episodes at the target; not"
        " all in one call; every contestant, intervals and rules: [docs/scores.md](docs/scores.md)."
    )


def _seeds(entries: dict[str, Any]) -> int:
    return max(entry["seeds"] for entry in entries.values())


def _best(entries: dict[str, Any], framework: str) -> tuple[str, str, str]:
    own = {
        name: entry
        for name, entry in entries.items()
        if name.startswith(f"{framework} ") and entry["seeds"] >= FEWEST_SEEDS
    }
    if not own:
        return "-", "-", "-"
    late = {name: 2 * entry["reached"] <= entry["seeds"] for name, entry in own.items()}
    missed = {name: entry["reached"] < entry["seeds"] for name, entry in own.items()}
    name = min(own, key=lambda each: (late[each], missed[each], _order(own[each])))
    entry = own[name]
    seconds, steps = (
        _median(entry["seconds"], 1, late[name]),
        _median(entry["steps"], 0, late[name]),
    )
    return f"`{name.split()[1]}`", seconds, steps


def choosing_block(results: Path = RESULTS) -> str:
    """For docs/choosing.md: which architecture solves each task soonest, and with fewest steps."""
    if not results.exists():
        return "Not measured yet: `python benchmarks/scores.py`."
    tasks = json.loads(results.read_text(encoding="utf-8"))["tasks"]
    lines = []
    for task, entries in tasks.items():
        if not _has_target(entries):
            continue
        whole = {n.split()[1]: e for n, e in entries.items() if n.startswith("veldt ")}
        if not whole:
            continue
        whole = {n: e for n, e in whole.items() if e["seeds"] and e["reached"] == e["seeds"]}
        lines.append((task, *(_first(whole, by) for by in ("seconds", "steps")), _others(whole)))
    header = ("task", "soonest", "fewest steps", "reached by all seeds of")
    return _table(header, lines) + "\n\nMedians; intervals and seeds: [scores](scores.md)."


def _first(entries: dict[str, Any], by: str) -> str:
    if not entries:
        return "none with all seeds"
    entries = {name: entry for name, entry in entries.items() if entry[by]}
    if not entries:
        return "-"
    name = min(entries, key=lambda each: entries[each][by]["median"])
    value = entries[name][by]["median"]
    return f"`{name}`, {value:,.1f} s" if by == "seconds" else f"`{name}`, {value:,.0f}"


def _others(entries: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in entries) or "-"
