# SPDX-License-Identifier: Apache-2.0
"""Runs as text: the table of `veldt runs`, and `veldt info` about one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from veldt.checkpoints.store import CheckpointStore
from veldt.dashboard.reading import RunReader, RunView
from veldt.errors import ConfigurationError
from veldt.options.fields import format_keys
from veldt.telemetry.progress import closing_lines, number
from veldt.telemetry.record import CONFIG_FILE
from veldt.zoo import ZOO, cards

_COLUMNS = ("run", "architecture", "env", "seed", "state", "env steps", "score")


@dataclass(frozen=True)
class RunSummary:
    """One run of a table; unknown numbers are None."""

    run: str
    architecture: str
    env: str
    seed: int
    state: str
    """starting, running, killed (its process ended without a result), or why it ended."""
    env_steps: int
    score: float | None
    """Mean return of the last evaluation, or without one of the last 100 training episodes."""

    def cells(self) -> tuple[str, ...]:
        known = (self.run, self.architecture, self.env, str(self.seed), self.state)
        return (*known, f"{self.env_steps:,}", number(self.score))


def summaries(folder: Path) -> list[RunSummary]:
    """The runs in a folder and in the folders below it, oldest first."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}; name one that holds runs")
    paths = [path.parent for path in folder.rglob(CONFIG_FILE)]
    found = []
    for path in sorted(paths, key=lambda path: (path / CONFIG_FILE).stat().st_mtime):
        try:
            found.append(_summary(path, RunReader(path).read()))
        except (ConfigurationError, KeyError, TypeError):
            continue  # another program's config.json
    return found


def _summary(path: Path, view: RunView) -> RunSummary:
    result, status = view.result, view.status
    state, score = view.state.replace("lost", "killed"), status.get("mean_return_100")
    if result is not None:
        state = f"ended by {result.stopped_by}" + ("" if result.updates else ", 0 updates")
        score = result.mean_return_100 if (e := result.evaluation_return) is None else e
    names = str(view.config["architecture"]), str(view.option("env")), int(view.option("seed"))
    env_steps = int(status.get("env_steps", 0 if result is None else result.env_steps))
    return RunSummary(str(path), *names, state, env_steps, score)


def table(found: list[RunSummary]) -> str:
    """The runs in columns."""
    rows = [_COLUMNS, *(each.cells() for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def about(run_dir: Path) -> str:
    """What a run is, where it stands, and its checkpoints."""
    view = RunReader(run_dir).read()
    summary, config = _summary(run_dir, view), view.config
    chosen = {name: tuple(v) if isinstance(v, list) else v for name, v in config["chosen"].items()}
    checkpoints = ", ".join(f"{n:,}" for n in CheckpointStore(run_dir / "checkpoints").steps())
    lines = [
        f"{summary.architecture} on {summary.env}, backend {view.option('backend')}, seed"
        f" {summary.seed}: {summary.state}",
        f"{summary.env_steps:,} env steps, score {number(summary.score)}",
        f"chosen: {format_keys(chosen)}",
        f"checkpoints at env steps: {checkpoints or 'none'}",
    ]
    if run_dir.parent == ZOO:
        card = cards()[run_dir.name]
        lines.append(f"trained at commit {card['commit']}; {card['score']['text']}")
    rest = [f"repeat it: {config.get('command')}"] if view.result is None else []
    return "\n".join([*lines, *(rest if view.result is None else closing_lines(view.result))])
