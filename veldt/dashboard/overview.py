# SPDX-License-Identifier: Apache-2.0
"""Runs as text: the table of `veldt runs`, and `veldt info` about one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veldt.checkpoints.store import CheckpointStore
from veldt.dashboard.reading import RunReader, RunView
from veldt.errors import ConfigurationError
from veldt.options.fields import format_keys
from veldt.telemetry.progress import closing_lines, number
from veldt.telemetry.record import CONFIG_FILE
from veldt.zoo import ZOO, cards

_COLUMNS = ("run", "architecture", "env", "seed", "state", "env_steps", "score")


def summaries(folder: Path) -> list[dict[str, Any]]:
    """The runs in a folder and in the folders below it, oldest first, by _COLUMNS."""
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


def _summary(path: Path, view: RunView) -> dict[str, Any]:
    """State: starting, running, killed (its process ended without a result), or why it ended.
    Score: of the last evaluation, or else of the last 100 training episodes; None if unknown."""
    result, status = view.result, view.status
    state, score = view.state.replace("lost", "killed"), status.get("mean_return_100")
    if result is not None:
        state = f"ended by {result.stopped_by}" + ("" if result.updates else ", 0 updates")
        score = result.mean_return_100 if (e := result.evaluation_return) is None else e
    env_steps = int(status.get("env_steps", 0 if result is None else result.env_steps))
    about_run = (str(path), view.config["architecture"], view.option("env"), view.option("seed"))
    return dict(zip(_COLUMNS, (*about_run, state, env_steps, score), strict=True))


def table(found: list[dict[str, Any]]) -> str:
    """The runs in columns."""
    rows = [[name.replace("_", " ") for name in _COLUMNS]]
    for row in found:
        *words, env_steps, score = row.values()
        rows.append([*map(str, words), f"{env_steps:,}", number(score)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def about(run_dir: Path) -> str:
    """What a run is, where it stands, and its checkpoints."""
    view = RunReader(run_dir).read()
    summary, config = _summary(run_dir, view), view.config
    chosen = {name: tuple(v) if isinstance(v, list) else v for name, v in config["chosen"].items()}
    checkpoints = ", ".join(f"{n:,}" for n in CheckpointStore(run_dir / "checkpoints").steps())
    lines = [
        f"{summary['architecture']} on {summary['env']}, backend {view.option('backend')}, seed"
        f" {summary['seed']}: {summary['state']}",
        f"{summary['env_steps']:,} env steps, score {number(summary['score'])}",
        f"chosen: {format_keys(chosen)}",
        f"checkpoints at env steps: {checkpoints or 'none'}",
    ]
    if run_dir.parent == ZOO:
        card = cards()[run_dir.name]
        lines.append(f"trained at commit {card['commit']}; {card['score']['text']}")
    repeat = f"repeat it: {config.get('command')}"
    return "\n".join([*lines, *([repeat] if view.result is None else closing_lines(view.result))])
