# SPDX-License-Identifier: Apache-2.0
"""Four rules of match-making on Leduc, judged by NashConv: which is best, or that none is.

Every arm has the same env steps (of all its players together), the same entropies to choose from
and the same seeds. An arm is judged at the entropy that suits it best, by its better measure, that
of the last model or of the mixture: the same choice for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veldt.compare.statistics import estimate, interquartile_mean

ARMS = ("latest", "uniform", "pfsp", "alphastar")
ENTROPIES = (0.05, 0.1, 0.2)
ENV_STEPS = 1_000_000
_MEASURES = ("nash_conv.last", "nash_conv.mixture")
_RESAMPLES, _TAIL = 10_000, 0.025


def arms(entropy: float, env_steps: int) -> dict[str, dict[str, Any]]:
    """Options by arm; entropy falls from three times `entropy` to it."""
    shared = {
        "env": "veldt:leduc",
        "backend": "serial",  # one thread: what else the machine does changes no number
        "total_env_steps": env_steps,
        # 2,048 rows per update, so that a fourth of the steps is still a hundred updates.
        "envs_per_actor": 512,
        "trajectory_steps": 4,
        "batch_trajectories": 1,
        "entropy_coefficient": 3 * entropy,
        "loss_options": {"final_entropy": entropy},
    }
    found = {}
    for arm in ARMS:
        # A league of 4 learning players shares the steps, and freezes as often as one player does.
        freeze = max(1, env_steps // (40 if arm == "alphastar" else 20))
        league = {"measure_env_steps": max(1, env_steps // 40), "freeze_env_steps": freeze}
        found[arm] = {**shared, "matchmaking": arm, "league_options": league}
    return found


def job_name(arm: str, entropy: float) -> str:
    return f"{arm}@{entropy:g}"


def judged(entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What each arm comes to at its best, and the verdict with intervals."""
    found: dict[str, dict[str, Any]] = {}
    for arm in ARMS:
        cells = _cells(arm, entries)
        if cells:
            best = min(cells, key=lambda cell: cell["interquartile_mean"])
            found[arm] = {"best": best, "sweep": cells}
    if len(found) < 2:
        return {"arms": found, "verdict": "not enough arms have finished"}
    return {"arms": found, **_verdict({arm: entry["best"] for arm, entry in found.items()})}


def _cells(arm: str, entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each entropy and measure: values of all seeds and their interquartile mean."""
    cells = []
    names = {e["name"] for e in entries.values() if e["name"].startswith(f"{arm}@")}
    for name in sorted(names):
        own = [e for e in entries.values() if e["name"] == name and e["finished"]]
        own.sort(key=lambda entry: entry["seed"])
        for measure in _MEASURES if own else ():
            values = [entry["final"][measure] for entry in own]
            told = estimate(np.array(values))
            cells.append(
                {
                    "final_entropy": float(name.rpartition("@")[2]),
                    "measure": measure,
                    "seeds": [entry["seed"] for entry in own],
                    "values": values,
                    "interquartile_mean": float(told.value),
                    "interval": [float(told.low), float(told.high)],
                }
            )
    return cells


def _verdict(best: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The leader against each other arm. A tie with whom the interval of the difference has 0."""
    leader = min(best, key=lambda arm: best[arm]["interquartile_mean"])
    against = {}
    for arm, cell in best.items():
        if arm != leader:
            against[arm] = _difference(cell["values"], best[leader]["values"])
    tied = [arm for arm, entry in against.items() if entry["interval"][0] <= 0.0]
    if tied:
        words = f"a tie between {leader} and {', '.join(tied)}"
    else:
        words = f"{leader} has the lowest NashConv"
    return {"leader": leader, "above_the_leader": against, "tied": tied, "verdict": words}


def _difference(values: list[float], leader: list[float]) -> dict[str, Any]:
    """How much more NashConv an arm has than the leader, and 95% by resampling seeds."""
    random = np.random.default_rng(0)
    one, other = np.array(values), np.array(leader)
    drawn = [
        interquartile_mean(group[random.integers(len(group), size=(_RESAMPLES, len(group)))])
        for group in (one, other)
    ]
    low, high = np.quantile(drawn[0] - drawn[1], (_TAIL, 1.0 - _TAIL))
    difference = float(interquartile_mean(one) - interquartile_mean(other))
    return {"difference": difference, "interval": [float(low), float(high)]}


def told(verdict: dict[str, Any]) -> list[str]:
    """For the terminal."""
    lines = []
    for arm, entry in verdict["arms"].items():
        best = entry["best"]
        low, high = best["interval"]
        lines.append(
            f"{arm}: {best['measure']} {best['interquartile_mean']:.3f} [{low:.3f}, {high:.3f}]"
            f" over {len(best['values'])} seeds, final entropy {best['final_entropy']:g}"
        )
    for arm, entry in verdict.get("above_the_leader", {}).items():
        low, high = entry["interval"]
        pair, more = f"{arm} - {verdict['leader']}", entry["difference"]
        lines.append(f"{pair}: {more:+.3f} [{low:+.3f}, {high:+.3f}]")
    return [*lines, verdict["verdict"]]
