# SPDX-License-Identifier: Apache-2.0
"""The published systems, one file each, and the value that describes a system to the rest of Veldt.

Importing this module does not import PyTorch; importing a system does.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from veldt.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from veldt.problem import Problem
    from veldt.topology import Topology


def one_actor(cores: int) -> int:
    return 1


def one_actor_per_core(cores: int) -> int:
    return cores


def one_core_for_the_learner(cores: int) -> int:
    return cores - 1


@dataclass(frozen=True)
class Architecture:
    """One system: its options, how it is built, and what it can do.

    A module of a system defines one of these as `ARCHITECTURE`.
    """

    name: str
    config: type[Any]
    """A subclass of `veldt.extend.Options`."""
    build: Callable[[Any, Problem], Topology]
    """Wires the nodes for a config and a problem."""
    presets: Mapping[str, Any]
    """Named configs; the first is used where no name fits the task family."""
    default_actors: Callable[[int], int] = one_core_for_the_learner
    """Number of actors for a number of cores."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Backends ("ray") and devices ("cuda") that it does not run on, with the message for each."""
    actors_wait: bool = False
    """Actors wait while the learner works, so the learner may use all cores."""
    central_inference: bool = False
    """Actors send observations to a server, whose device then acts."""
    takes_external: bool = False
    """Accepts --env external:HOST:PORT, simulators in other processes."""
    paper_envs_per_actor: int | None = None
    """Environments per actor of the preset `paper`; None: as in other presets."""
    clips_atari_rewards: bool = True
    """Clips rewards of Atari games to [-1, 1] unless --reward-clip says otherwise."""


@dataclass(frozen=True)
class Listing:
    """A system of the table below; its module has the `Architecture`."""

    name: str
    year: int
    paper: str
    new: str
    plays_games: bool = False
    """Whether it needs an environment of several players."""
    example_env: str = "CartPole-v1"
    """Environment of a diagram when none is named."""

    @property
    def file(self) -> str:
        return f"veldt/architectures/{self.name}.py"


ARCHITECTURES = {
    row.name: row
    for row in (
        Listing(
            "dqn",
            2013,
            "Mnih et al., Playing Atari with Deep Reinforcement Learning",
            "replay and a target network make Q-learning with deep networks stable",
        ),
        Listing(
            "gorila",
            2015,
            "Nair et al., Massively Parallel Methods for Deep Reinforcement Learning",
            "many actors and learners; a sharded parameter server takes their gradients",
        ),
        Listing(
            "a3c",
            2016,
            "Mnih et al., Asynchronous Methods for Deep Reinforcement Learning",
            "workers write gradients into shared weights without locks; no replay, no server",
        ),
        Listing(
            "a2c",
            2016,
            "Mnih et al., Asynchronous Methods for Deep RL, in its synchronous form",
            "actors wait for each other, so every gradient is on-policy: lag 0",
        ),
        Listing(
            "async_q",
            2016,
            "Mnih et al., Asynchronous Methods for Deep Reinforcement Learning",
            "A3C's workers with a Q network: n-step or one-step Q-learning, or Sarsa",
        ),
        Listing(
            "ppo",
            2017,
            "Schulman et al., Proximal Policy Optimization Algorithms",
            "several passes over each batch; a clip keeps the policy near the one that acted",
        ),
        Listing(
            "ga3c",
            2017,
            "Babaeizadeh et al., Reinforcement Learning through Asynchronous A3C on a GPU",
            "agents without a model ask predictors; trainers share it; their numbers are annealed",
        ),
        Listing(
            "apex",
            2018,
            "Horgan et al., Distributed Prioritized Experience Replay",
            "one prioritized replay for many actors, which compute the first priorities themselves",
        ),
        Listing(
            "sac",
            2018,
            "Haarnoja et al., Soft Actor-Critic",
            "a stochastic policy over Box actions with learned entropy; twin critics; replay",
            example_env="Pendulum-v1",
        ),
        Listing(
            "td3",
            2018,
            "Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods",
            "twin critics, smoothed target actions and a delayed actor over Box actions; replay",
            example_env="Pendulum-v1",
        ),
        Listing(
            "impala",
            2018,
            "Espeholt et al., IMPALA: Scalable Distributed Deep-RL",
            "trajectories instead of gradients travel, V-trace corrects the lag",
        ),
        Listing(
            "r2d2",
            2019,
            "Kapturowski et al., Recurrent Experience Replay in Distributed RL",
            "a network with memory learns from a replay of sequences; central inference",
        ),
        Listing(
            "seed_rl",
            2019,
            "Espeholt et al., SEED RL: Scalable and Efficient Deep-RL with Accelerated Central"
            " Inference",
            "actors hold no weights: they stream observations to a server beside the learner",
        ),
        Listing(
            "sample_factory",
            2020,
            "Petrenko et al., Sample Factory: Egocentric 3D Control from Pixels at 100000 FPS",
            "one machine: observations written once into shared slots, double-buffered actors",
        ),
        Listing(
            "sebulba",
            2021,
            "Hessel et al., Podracer architectures for scalable Reinforcement Learning",
            "a fixed pace: actors collect the next batch with weights that are one update old",
        ),
        Listing(
            "pqn",
            2024,
            "Gallici et al., Simplifying Deep Temporal Difference Learning",
            "Q-learning without replay and target network: many environments and layer norm",
        ),
        Listing(
            "areal",
            2025,
            "Fu et al., AReaL: A Large-Scale Asynchronous Reinforcement Learning System",
            "actors may be `eta` batches ahead and change weights at any row; PPO's clip decoupled",
        ),
        Listing(
            "league",
            2020,
            "Sun et al., TLeague: A Framework for Competitive Self-Play based Distributed"
            " Multi-Agent Reinforcement Learning",
            "games of several players: a manager matches learners with a pool of frozen models",
            plays_games=True,
            example_env="veldt:kuhn",
        ),
    )
}

ON_ONE_PLAYER = tuple(name for name, row in ARCHITECTURES.items() if not row.plays_games)


def is_own(name: str) -> bool:
    """Whether a name is a user's own architecture: "path/to/file.py" or "package.module"."""
    return name.endswith(".py") or "." in name.strip(".")


def modules_of(name: str | None) -> tuple[str, ...]:
    """Modules that a process can import in advance: a published system with its roles."""
    return (f"{__name__}.{name}",) if name in ARCHITECTURES else ()


def label(name: str) -> str:
    """A short name for tables and folders."""
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


OTHER_NAMES = {
    "appo": "sample_factory",
    "cleanba": "sebulba",
    "ddpg": "apex, which is DPG for Box actions, or td3",
    "dpg": "apex, which is DPG for Box actions",
    "podracer": "sebulba",
    "rainbow": "apex, which has its double, dueling, n-step and prioritised parts",
    "vtrace": "impala or seed_rl",
    "one_step_q": "async_q --worker one_step",
    "n_step_q": "async_q",
    "sarsa": "async_q --worker sarsa",
}
"""Names of methods that are not names of architectures."""

_PASSES = ("epochs", "minibatches", "ppo_clip", "target_kl", "value_clip", "normalize_values")
_MOVED = {
    "a2c": dict.fromkeys(
        (*_PASSES, "noise_share", "num_envs"), "a2c learns once from a batch; use ppo"
    ),
    "apex": {"algorithm": "use sac or td3; apex itself is DQN, and DPG for Box actions"},
    "sample_factory": {"synchronous": "use sebulba, with --eta 0 for no lag"},
    "seed_rl": {"algorithm": "use r2d2; seed_rl itself learns with V-trace"},
    "a3c": {"algorithm": "use async_q for Q-learning and Sarsa workers"},
}


def moved_options(name: str) -> dict[str, str]:
    """Options that an architecture had in earlier versions, and what to use instead."""
    return {
        option: f"{name} has no option '{option}'; {hint}"
        for option, hint in _MOVED.get(name, {}).items()
    }


def check(name: str) -> None:
    """Refuse a name that is not in the table and not the user's own; costs no import."""
    if name.endswith(".py") and not Path(name).is_file():
        raise ConfigurationError(f"there is no file {name}; give the path of an architecture")
    if name.lower() in OTHER_NAMES:
        raise ConfigurationError(f"no architecture '{name}'; use {OTHER_NAMES[name.lower()]}")
    if name not in ARCHITECTURES and not is_own(name):
        raise ConfigurationError(
            f"unknown architecture '{name}'; {did_you_mean(name, ARCHITECTURES)}"
        )


def load(name: str) -> Architecture:
    """Import an architecture.

    Args:
        name: one of the table, the path of a Python file, or the dotted name of a module.
    """
    check(name)
    module = importlib.import_module(*modules_of(name)) if not is_own(name) else _own_module(name)
    found = vars(module).get("ARCHITECTURE")
    if not isinstance(found, Architecture):
        raise ConfigurationError(
            f"{name} has no ARCHITECTURE = Architecture(...); veldt/architectures/a2c.py shows how"
        )
    return found


def _own_module(name: str) -> ModuleType:
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
    return module


def example_env(name: str) -> str:
    """An environment that an architecture can be drawn with, also a user's own."""
    return ARCHITECTURES[name].example_env if name in ARCHITECTURES else "CartPole-v1"


def summary(name: str) -> str:
    """One line about an architecture."""
    if name in ARCHITECTURES:
        row = ARCHITECTURES[name]
        return f"{name} ({row.year}): {row.new}. {row.paper}."
    doc = sys.modules[load(name).build.__module__].__doc__ or "no docstring"
    return f"{label(name)}: {doc.strip().splitlines()[0]}"
