# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: one file per system, in the order the field found them."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from types import ModuleType

from veldt.errors import ConfigurationError


@dataclass(frozen=True)
class Architecture:
    """One row of the table of architectures; the module of the same name has the rest."""

    name: str
    year: int
    paper: str
    new: str

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
    )
}


def check(name: str) -> None:
    """Refuse a name that is not in the table; costs no import."""
    if name not in ARCHITECTURES:
        near = difflib.get_close_matches(name, ARCHITECTURES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ARCHITECTURES)}"
        raise ConfigurationError(f"unknown architecture '{name}'; {hint}")


def load(name: str) -> ModuleType:
    """The architecture's module: Config, PRESETS and build."""
    check(name)
    return importlib.import_module(f"veldt.architectures.{name}")
