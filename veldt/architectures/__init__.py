# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: one file per system, in the order the field found them."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from veldt.errors import ConfigurationError, did_you_mean


@dataclass(frozen=True)
class Architecture:
    """One row of the table of architectures; the module of the same name has the rest."""

    name: str
    year: int
    paper: str
    new: str
    plays_games: bool = False
    """Whether it needs an environment of several players."""

    @property
    def example_env(self) -> str:
        """What diagrams are drawn with when no environment is named."""
        return "veldt:kuhn" if self.plays_games else "CartPole-v1"

    @property
    def file(self) -> str:
        return f"veldt/architectures/{self.name}.py"


ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture(
            "dqn",
            2013,
            "Mnih et al., Playing Atari with Deep Reinforcement Learning",
            "replay and a target network make Q-learning with deep networks stable",
        ),
        Architecture(
            "gorila",
            2015,
            "Nair et al., Massively Parallel Methods for Deep Reinforcement Learning",
            "many actors and learners; a sharded parameter server takes their gradients",
        ),
        Architecture(
            "a3c",
            2016,
            "Mnih et al., Asynchronous Methods for Deep Reinforcement Learning",
            "workers write gradients into shared weights without locks; no replay, no server",
        ),
        Architecture(
            "a2c",
            2016,
            "Mnih et al., Asynchronous Methods for Deep RL, in its synchronous form",
            "actors wait for each other, so every gradient is on-policy: lag 0",
        ),
        Architecture(
            "ga3c",
            2017,
            "Babaeizadeh et al., Reinforcement Learning through Asynchronous A3C on a GPU",
            "agents without a model ask predictors; trainers share it; their numbers are annealed",
        ),
        Architecture(
            "apex",
            2018,
            "Horgan et al., Distributed Prioritized Experience Replay",
            "one prioritized replay for many actors, which compute the first priorities themselves",
        ),
        Architecture(
            "impala",
            2018,
            "Espeholt et al., IMPALA: Scalable Distributed Deep-RL",
            "trajectories instead of gradients travel, V-trace corrects the lag",
        ),
        Architecture(
            "seed_rl",
            2019,
            "Espeholt et al., SEED RL: Scalable and Efficient Deep-RL with Accelerated Central"
            " Inference",
            "actors hold no weights: they stream observations to a server beside the learner",
        ),
        Architecture(
            "sample_factory",
            2020,
            "Petrenko et al., Sample Factory: Egocentric 3D Control from Pixels at 100000 FPS",
            "one machine: observations written once into shared slots, double-buffered actors",
        ),
        Architecture(
            "league",
            2020,
            "Sun et al., TLeague: A Framework for Competitive Self-Play based Distributed"
            " Multi-Agent Reinforcement Learning",
            "games of several players: a manager matches learners with a pool of frozen models",
            plays_games=True,
        ),
    )
}

ON_ONE_PLAYER = tuple(name for name, row in ARCHITECTURES.items() if not row.plays_games)


def is_own(name: str) -> bool:
    """Whether a name stands for a user's own architecture: "path/to/file.py" or "package.module".
    Such a module has what those of this folder have: Config, PRESETS, default_actors and build."""
    return name.endswith(".py") or "." in name.strip(".")


def modules_of(name: str | None) -> tuple[str, ...]:
    """What a process can import for it before it is told more: one of ours, with its roles."""
    return (f"{__name__}.{name}",) if name in ARCHITECTURES else ()


def label(name: str) -> str:
    """A short name for tables and folders."""
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


_PPO = "a2c (synchronous) or sample_factory (asynchronous), whose presets learn with PPO"
_METHODS = {
    "ppo": _PPO,
    "appo": "sample_factory",
    "sac": "apex --algorithm sac",
    "td3": "apex --algorithm td3",
    "ddpg": "apex --algorithm dpg",
    "dpg": "apex --algorithm dpg",
    "rainbow": "apex, which has its double, dueling, n-step and prioritised parts",
    "r2d2": "seed_rl --algorithm r2d2",
    "vtrace": "impala or seed_rl",
}
"""What people look for by another name, and where it is."""


def check(name: str) -> None:
    """Refuse a name that is not in the table and not the user's own; costs no import."""
    if name.endswith(".py") and not Path(name).is_file():
        raise ConfigurationError(f"there is no file {name}; give the path of an architecture")
    if name.lower() in _METHODS:
        raise ConfigurationError(
            f"{name} is a method, not an architecture; use {_METHODS[name.lower()]}"
        )
    if name not in ARCHITECTURES and not is_own(name):
        raise ConfigurationError(
            f"unknown architecture '{name}'; {did_you_mean(name, ARCHITECTURES)}"
        )


def load(name: str) -> ModuleType:
    """The architecture's module: Config, PRESETS, default_actors and build."""
    check(name)
    if not is_own(name):
        return importlib.import_module(*modules_of(name))
    path = Path(name).resolve() if name.endswith(".py") else None
    folder = str(path.parent) if path else os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # node processes inherit it, and import the module by its name
    try:
        module = importlib.import_module(path.stem if path else name)
    except ImportError as error:
        raise ConfigurationError(f"cannot import the architecture {name}: {error}") from error
    if path and Path(module.__file__ or "").resolve() != path:
        raise ConfigurationError(f"{name} is hidden by another module {path.stem}; rename the file")
    for needed in ("Config", "PRESETS", "default_actors", "build"):
        if not hasattr(module, needed):
            raise ConfigurationError(
                f"{name} has no {needed}; veldt/architectures/a2c.py shows how"
            )
    return module


def example_env(name: str) -> str:
    """An environment that an architecture can be drawn with, also a user's own."""
    return ARCHITECTURES[name].example_env if name in ARCHITECTURES else "CartPole-v1"


def summary(name: str) -> str:
    """One line about an architecture."""
    if name in ARCHITECTURES:
        row = ARCHITECTURES[name]
        return f"{name} ({row.year}): {row.new}. {row.paper}."
    return f"{label(name)}: {(load(name).__doc__ or 'no docstring').strip().splitlines()[0]}"
