# SPDX-License-Identifier: Apache-2.0
"""What is compared: the options of `veldt compare`. The command line is made from these fields."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veldt.architectures import ARCHITECTURES, ON_ONE_PLAYER, check, label
from veldt.compare.page import check_installed
from veldt.environments.lookup import GAME_PREFIXES
from veldt.errors import ConfigurationError
from veldt.files import write_atomically

ALL = "all"
SETTINGS_FILE = "compare.json"
_MAY_GROW = ("architectures", "seeds", "out", "ceiling_seconds", "evidence")
_OF_EVERY_RUN = (
    "env",
    "backend",
    "total_env_steps",
    "max_seconds",
    "target_return",
    "num_actors",
    "envs_per_actor",
    "network",
    "evaluation_episodes",
)


@dataclass(frozen=True)
class Comparison:
    """One environment and one budget for every architecture and seed."""

    env: str
    """Gymnasium id, ALE/..., envpool:..., or module:function that makes an environment."""
    out: str
    """Folder of runs, report.html, results.csv and figures; a second call goes on in it."""
    architectures: tuple[str, ...] = (ALL,)
    """Names or own files, comma separated; all: every one that fits the environment."""
    seeds: int = 3
    """Runs of each architecture, with seeds 0, 1, ..."""
    max_seconds: float | None = None
    """Budget of each run in seconds."""
    total_env_steps: int | None = None
    """Budget of each run in environment steps."""
    target_return: float | None = None
    """A run ends early when it reaches this score; the report then compares times to it."""
    backend: str = "process"
    """Where nodes run: serial, process or ray."""
    num_actors: int | None = None
    """Actors of each run; default: as each architecture uses the cores."""
    envs_per_actor: int | None = None
    """Environments per actor; default: from a quick measurement."""
    network: str = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    evaluation_episodes: int = 20
    """Fresh episodes that close each run and give its score."""
    evidence: bool = False
    """Also print and keep, in evidence.json, bytes per step, who waits, and lag of every system."""
    ceiling_seconds: float = 3.0
    """How long the environments alone are measured."""

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
            raise ConfigurationError(f"two architectures are called the same: {', '.join(labels)}")

    @property
    def names(self) -> tuple[str, ...]:
        if self.architectures != (ALL,):
            return self.architectures
        return tuple(ARCHITECTURES) if str(self.env).startswith(GAME_PREFIXES) else ON_ONE_PLAYER

    @property
    def run_options(self) -> dict[str, Any]:
        """Options of every run that are not left to their defaults."""
        given = {name: getattr(self, name) for name in _OF_EVERY_RUN}
        return {name: value for name, value in given.items() if value is not None}


def claim_folder(comparison: Comparison) -> Path:
    """Make OUT, or check that what it holds was made under the same conditions."""
    check_installed("veldt compare")
    out = Path(comparison.out)
    wanted = json.loads(json.dumps(_conditions(comparison)))
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / SETTINGS_FILE).exists():
            _refuse_a_mixture(out, wanted)
        write_atomically(out / SETTINGS_FILE, json.dumps(wanted, indent=2) + "\n", durable=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from error
    return out


def _refuse_a_mixture(out: Path, wanted: dict[str, Any]) -> None:
    held = json.loads((out / SETTINGS_FILE).read_text(encoding="utf-8"))
    for name, value in wanted.items():
        if held.get(name) != value:
            raise ConfigurationError(
                f"{out} holds runs with {name} {held.get(name)}, not {value}; choose another --out"
            )


def _conditions(comparison: Comparison) -> dict[str, Any]:
    """What must be the same for runs to be comparable."""
    everything = asdict(comparison)
    return {name: value for name, value in everything.items() if name not in _MAY_GROW}
