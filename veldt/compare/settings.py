# SPDX-License-Identifier: Apache-2.0
"""The options of `veldt compare`; its command line is made from these fields."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veldt.architectures import ARCHITECTURES, ON_ONE_PLAYER, check, label
from veldt.environments.lookup import GAME_PREFIXES
from veldt.errors import ConfigurationError
from veldt.files import write_atomically

ALL = "all"
SETTINGS_FILE = "compare.json"
_MAY_GROW = ("architectures", "seeds", "out", "ceiling_seconds")
_OF_EVERY_RUN = (
    *("env", "backend", "total_env_steps", "max_seconds", "target_return", "num_actors"),
    *("envs_per_actor", "network", "evaluation_episodes"),
)


@dataclass(frozen=True)
class Comparison:
    """One environment and one budget for every architecture and seed."""

    env: str
    """Gymnasium id, ALE/..., envpool:..., or module:function that makes an environment."""
    out: str
    """Folder of runs, report.html, results.csv and figures; the same call continues there."""
    architectures: tuple[str, ...] = (ALL,)
    """Names or own files, comma separated; all: every one that fits the environment."""
    seeds: int = 3
    """Runs of each architecture, with seeds 0, 1, ..."""
    max_seconds: float | None = None
    """Budget of each run in seconds."""
    total_env_steps: int | None = None
    """Budget of each run in environment steps."""
    target_return: float | None = None
    """End a run when it reaches this score; the report then compares times to it."""
    backend: str = "process"
    """Where nodes run: serial, process or ray."""
    num_actors: int | None = None
    """Actors of each run; default: as each architecture uses the cores."""
    envs_per_actor: int | None = None
    """Environments per actor; default: from a quick measurement."""
    network: str = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    evaluation_episodes: int = 20
    """Fresh episodes at the end of each run, whose mean return is its score."""
    ceiling_seconds: float = 3.0
    """Seconds for which the environments alone are measured."""

    def __post_init__(self) -> None:
        if self.max_seconds is None and self.total_env_steps is None:
            raise ConfigurationError("give every run a budget: --max-seconds or --total-env-steps")
        for name in ("seeds", "evaluation_episodes", "ceiling_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; use more than 0")
        if ALL in self.architectures and len(self.architectures) > 1:
            raise ConfigurationError("architectures is 'all' or a list of names, not both")
        for name in self.architectures:
            if name != ALL:
                check(name)
        labels = [label(name) for name in self.names]
        if len(set(labels)) < len(labels):
            raise ConfigurationError(f"two architectures have the same name: {', '.join(labels)}")

    @property
    def names(self) -> tuple[str, ...]:
        if self.architectures != (ALL,):
            return self.architectures
        return tuple(ARCHITECTURES) if str(self.env).startswith(GAME_PREFIXES) else ON_ONE_PLAYER

    @property
    def run_options(self) -> dict[str, Any]:
        """Options of every run that differ from `None`."""
        given = {name: getattr(self, name) for name in _OF_EVERY_RUN}
        return {name: value for name, value in given.items() if value is not None}


def prepare_output_dir(comparison: Comparison) -> Path:
    """Make the output folder, or check that its runs were made under the same conditions."""
    for library in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(library) is None:
            raise ConfigurationError(
                f'veldt compare draws its report with {library}; run: pip install "veldt[plots]"'
            )
    out = Path(comparison.out)
    path = out / SETTINGS_FILE
    conditions = {n: value for n, value in asdict(comparison).items() if n not in _MAY_GROW}
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name, value in conditions.items():
            if known and known.get(name) != value:
                raise ConfigurationError(
                    f"{out} holds runs with {name} {known.get(name)}, not {value}; choose another"
                    " --out"
                )
        write_atomically(path, json.dumps(conditions, indent=2) + "\n", durable=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from error
    return out
