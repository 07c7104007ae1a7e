# SPDX-License-Identifier: Apache-2.0
"""What a run achieved: result.json, and the value that `veldt.train` returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veldt.files import write_atomically
from veldt.telemetry.counters import LagSummary

StoppedBy = Literal["target", "env_steps", "seconds", "callback", "interrupt", "failure"]


@dataclass
class RunResult:
    """The outcome of one run. A number that is not known is None (null in the file)."""

    architecture: str
    env: str
    backend: str
    seed: int
    env_steps: int = 0
    frames: int = 0
    """Env steps times the environment's action repeat."""
    updates: int = 0
    trained: bool = False
    """Whether the weights were updated at all."""
    wall_seconds: float = 0.0
    start_seconds: float | None = None
    """From process start to the first env step."""
    first_update_seconds: float | None = None
    """From process start to the first update."""
    env_steps_per_second: float | None = None
    """Steady state: without the start and the first moments after the first update."""
    mean_return_100: float | None = None
    evaluation_return: float | None = None
    """Mean return of the last evaluation whose episodes all ended in time, or else of those that
    did."""
    evaluation_episodes: int | None = None
    """Episodes in that mean."""
    evaluation_env_steps: int | None = None
    """Age of the weights that were evaluated."""
    evaluation_by_task: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """With several tasks or policies: `mean` and `normalized` return of each."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """All that were played during the run: age of the weights in env steps, and mean return."""
    best_return: float | None = None
    """Of the weights kept as best: evaluated, or the mean of 100 training episodes."""
    best_env_steps: int | None = None
    """Age of these weights; `veldt evaluate RUN_DIR --checkpoint best` plays them."""
    collapsed: bool = False
    """The run ended far below its best."""
    episodes: int = 0
    aborted_episodes: int = 0
    """Episodes that ended because their environment failed; not among `episodes`."""
    reached_target: bool = False
    seconds_to_target: float | None = None
    env_steps_to_target: int | None = None
    """Env steps before the evaluation that reached it."""
    policy_lag: dict[str, Any] = field(default_factory=lambda: lag_entry(LagSummary()))
    """mean, max, min in updates, the mean in env steps and as share of the run's updates, and a
    histogram whose index is the lag (127 is "or more")."""
    restarts: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """What was thrown away, by reason."""
    run_dir: str = ""
    command: str | None = None
    """The one that repeats the run; None where it was made from Python objects without a name."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """Family, preset, sizes and rows per update: what the task and the machine led to."""
    parameters_sha256: str = ""
    best_policy: int | None = None
    """Where several policies were trained: the one with the best returns, which was evaluated."""
    nash_conv: dict[str, float] | None = None
    """Of a league's last model and of the mixture of its past, where the game has it exactly."""
    league: dict[str, Any] | None = None
    """Numbers of players, frozen models and games, Elo, measures; None without a league."""
    stopped_by: StoppedBy = "failure"
    bottleneck: str = ""
    stage_shares: dict[str, dict[str, float]] = field(default_factory=dict)
    """Share of wall time by stage, for each kind of role."""

    def problems(self) -> list[str]:
        """What did not happen although the run ended, each with its remedy."""
        if not self.env_steps:
            return ["0 env steps: the run ended before any environment stepped; raise its budget"]
        found = []
        if not self.updates:
            found.append(
                "0 updates: nothing was learned; raise --total-env-steps or --max-seconds, or lower"
                " the rows per update (or what the replay waits for before it is sampled)"
            )
        if not self.episodes:
            found.append(
                "no episode ended: no return is known; raise the budget, or end episodes with"
                " --wrappers time_limit=N"
            )
        return found

    def to_json(self) -> str:
        """One field per line, valid JSON: NaN and infinities become null."""
        entries = ((entry.name, getattr(self, entry.name)) for entry in fields(self))
        lines = (f"  {json.dumps(name)}: {dumps(value)}" for name, value in entries)
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all, even if the machine stops meanwhile."""
        write_atomically(path, self.to_json(), durable=True)

    @staticmethod
    def load(path: str | Path) -> RunResult:
        """Read result.json; fields of a newer version are left out."""
        return RunResult.from_mapping(json.loads(Path(path).read_text(encoding="utf-8")))

    @staticmethod
    def from_mapping(stored: Mapping[str, Any]) -> RunResult:
        known = {entry.name for entry in fields(RunResult)}
        return RunResult(**{name: value for name, value in stored.items() if name in known})


def lag_entry(lag: LagSummary, env_steps: int = 0, updates: int = 0) -> dict[str, Any]:
    """The policy_lag entry of a result; the histogram ends at the largest lag seen."""
    share = lag.mean / max(1, updates)
    return {
        "mean": lag.mean,
        "max": lag.max,
        "min": lag.min,
        "mean_env_steps": share * env_steps,
        "mean_share_of_run": share,
        "histogram": np.trim_zeros(lag.histogram, "b").tolist(),
    }


def dumps(value: Any) -> str:
    """JSON of plain and NumPy values, with null for numbers that JSON cannot write."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
