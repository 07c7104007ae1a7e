# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to what is run: every bad input ends here, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from veldt import architectures
from veldt.architectures import Architecture
from veldt.backends.process.sending import check_can_be_sent
from veldt.backends.shared_memory.fabric import bytes_of
from veldt.devices import Compute
from veldt.environments import EnvironmentFactory, Interface
from veldt.environments.parameters import ENVIRONMENT, to_vector
from veldt.errors import ConfigurationError
from veldt.families import family, preset_names
from veldt.networks import FirstWeights, NetworkOptions
from veldt.options import DEFAULT_ENV_STEPS, RunOptions
from veldt.options.fields import flat, option_fields, with_values
from veldt.options.old_spellings import unknown_option
from veldt.population.wiring import HasPopulation, build_population
from veldt.problem import Problem
from veldt.resources import require_bytes, usable_cores
from veldt.roles.actor import Actor
from veldt.roles.learner import Learner
from veldt.roles.stream_inference import without_actors
from veldt.run import external
from veldt.run.placing import check_devices, place
from veldt.topology import End, QueueSpec, Topology
from veldt.types import EnvironmentSpec

_THREADS = "OMP_NUM_THREADS"
_MOST_THREADS_PER_CORE = 4
_MOST_THREADS_UNASKED = 8
_NATIVE_ENVS, _PYTHON_ENVS, _ATARI_ENVS = 64, 16, 8
"""Environments that an actor steps in about a millisecond: vectorised ones, those written in Python
and Atari's, which are wider where a GPU answers many rows in the time of one."""
_MOST_ATARI_ENVS = 64  # of one actor: their frames fill the memory
_WIDE_ENOUGH_FOR_CUDA = 512  # CartPole's two layers of 64 train several times faster on cores
_NATIVE_GAMES = 256  # a game is a row of arrays: 256 of them cost a third more than 64
_LEAST_NATIVE_ENVS = 16  # of one actor: stepping them takes hardly longer than stepping two

SIZES = {"num_envs", "batch_rows"}
"""Options that say how much is learned from at a time."""


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start."""

    architecture: str
    options: RunOptions
    config: Any
    problem: Problem
    topology: Topology
    family: str
    """The kind of task, from its spaces."""
    preset: str
    """The one that `config` began from."""

    def rows_per_update(self) -> int:
        """Rows in one learner's batch: transitions, or steps without the bootstrap row."""
        queue, end = self._learner_source()
        steps, *columns = queue.layout["reward"].shape
        rows = (steps - 1) * columns[0] if columns else steps
        return rows * end.slots_per_batch

    def slots_per_update(self) -> int:
        """Trajectories, or batches of transitions, that one learner takes at a time."""
        return self._learner_source()[1].slots_per_batch

    def _learner_source(self) -> tuple[QueueSpec, End]:
        learner = next(node for node in self.topology.nodes if isinstance(node.role, Learner))
        for _, end in learner.ends():
            if isinstance(end.channel, QueueSpec) and end.side == "source":
                return end.channel, end
        raise ValueError(f"{learner.name} reads no queue")


def make_plan(
    architecture: str,
    options: RunOptions,
    own: Mapping[str, Any],
    remembered: tuple[EnvironmentSpec, Interface] | None = None,
    first: FirstWeights | None = None,
) -> Plan:
    """Check everything and wire the topology; `own` are the architecture's fields by name. With
    `remembered` the environment is what it was said to be, and none is made. `first`: weights to
    begin with."""
    try:
        return _checked_plan(architecture, options, own, remembered, first)
    except ConfigurationError:
        raise
    except ValueError as error:  # a network or environment that cannot be made
        raise ConfigurationError(str(error)) from error


def _checked_plan(
    architecture: str,
    options: RunOptions,
    own: Mapping[str, Any],
    remembered: tuple[EnvironmentSpec, Interface] | None,
    first: FirstWeights | None,
) -> Plan:
    system = architectures.load(architecture)
    if options.backend in system.refuses:
        raise ConfigurationError(system.refuses[options.backend])
    options = external.sized(_with_an_end(options))
    environment, known = _environment(options), remembered or external.known(options, system)
    if known is not None:
        environment = environment.with_known_spec(*known)
    spec = environment.spec()
    is_image = any(leaf.kind == "image" for leaf in spec.observation)
    found = family(spec, options.recurrent)
    check_devices(options)
    device = _device(options, system, is_image)
    preset = _preset(system, options.preset, found, spec, device)
    if preset not in system.presets:
        raise ConfigurationError(f"unknown preset '{preset}'; use {', '.join(system.presets)}")
    num_actors = _num_actors(options, system)
    config = make_config(system, preset, own)
    if options.envs_per_actor is None and not SIZES & own.keys():
        config = grown(config, environment.is_native and not environment.is_atari, num_actors)
    if options.wrappers.reward_clip is None and _clips_rewards(environment, found, system):
        environment = environment.with_reward_clip(1.0)
    asks_device = device == "cuda" and system.central_inference
    problem = Problem(
        environment,
        spec,
        _network(options),
        seed=options.seed,
        num_actors=num_actors,
        envs_per_actor=envs_per_actor(options, environment, flat(config), num_actors, asks_device),
        compute=Compute(
            device,
            _learner_threads(options, system, is_image),
            gives_way=_THREADS not in os.environ,
        ),
        total_env_steps=options.total_env_steps,
        first=first,
    )
    topology = builder(system, config)(config, problem)
    topology.architecture = architectures.label(architecture)
    if environment.is_external:
        without_actors(topology, problem.external_endpoint(), environment.reward_clip)
    if environment.parameters is not None:
        _add_parameters(topology)
    _complete(topology, options)
    return Plan(architecture, options, config, problem, topology, found, preset)


def _clips_rewards(environment: EnvironmentFactory, found: str, system: Architecture) -> bool:
    """Atari's scores differ by orders of magnitude between games, and a sign says enough; who made
    another environment of large images chose its rewards. R2D2 rescales values instead."""
    is_atari = found.startswith("atari") and (environment.is_atari or environment.is_envpool)
    return is_atari and system.clips_atari_rewards


def _learner_threads(options: RunOptions, system: Architecture, is_image: bool) -> int:
    """OMP_NUM_THREADS if it is set. Serial must not depend on the machine, and several threads sum
    in another order than one."""
    asked, cores = os.environ.get(_THREADS, ""), usable_cores()
    if options.backend == "serial":
        return 1
    if not asked.isdecimal() or int(asked) < 1:
        is_alone = system.actors_wait and options.backend == "process"
        return min(cores, _MOST_THREADS_UNASKED) if is_alone and is_image else 1
    return min(int(asked), _MOST_THREADS_PER_CORE * cores)


def _complete(topology: Topology, options: RunOptions) -> None:
    """Add what the options ask for beyond the architecture, and refuse what cannot be run here."""
    place(topology, options)
    if options.extra_lag:
        add_lag(topology, options.extra_lag)
    require_bytes(
        bytes_of(topology),
        "what travels between the nodes",
        "use fewer --num-actors or --envs-per-actor, or shorter or fewer trajectories",
    )
    if options.backend == "process":
        check_can_be_sent(topology)


def builder(system: Architecture, config: Any) -> Callable[[Any, Problem], Topology]:
    """The function that wires the nodes; for several policies, that of a population."""
    if isinstance(config, HasPopulation) and config.population.num_policies > 1:
        return partial(build_population, system.build)
    return system.build


def _add_parameters(topology: Topology) -> None:
    """A board that the run itself writes, read by all actors."""
    board = topology.board(ENVIRONMENT, to_vector({}))
    for node in topology.nodes:
        if isinstance(node.role, Actor):
            node.role = replace(node.role, parameters=board.source())


def add_lag(topology: Topology, updates: int) -> None:
    """Let whoever acts read weights `updates` versions old; until there are as many, version 0."""
    lagged = set()
    for node in topology.nodes:
        slower = node.role.lagging(updates)
        if slower is None:
            continue
        if isinstance(node.role, Actor) and node.role.synchronous:
            raise ConfigurationError(
                f"{topology.architecture} acts with the newest weights by construction, so"
                " extra_lag does not go with it; try impala"
            )
        node.role = slower
        lagged |= {end.channel.name for _, end in node.ends() if end.extra_lag_updates}
    if not lagged:
        raise ConfigurationError(
            f"{topology.architecture} has no actors that read a board of weights, so extra_lag does"
            " not go with it; try impala"
        )
    for index, board in enumerate(topology.boards):
        if board.spec.name in lagged:
            spec = replace(board.spec, history=updates + 2)
            topology.boards[index] = replace(board, spec=spec)


def make_config(system: Architecture, preset: str, own: Mapping[str, Any]) -> Any:
    """The preset with the user's fields in it; misspelt names are met with the nearest one."""
    known = option_fields(system.config)
    moved = architectures.moved_options(system.name)
    for name in own:
        if name not in known and name in moved:
            raise ConfigurationError(moved[name])
        if name not in known:
            raise ConfigurationError(unknown_option(name, [*known, *option_fields(RunOptions)]))
    return with_values(system.presets[preset], own)


def _preset(
    system: Architecture, asked: str, found: str, spec: EnvironmentSpec, device: str
) -> str:
    """The preset asked for (its form for Box actions where it has one), or the family's."""
    if asked != "auto":
        special = f"{asked}_continuous"
        return special if spec.action.kind == "box" and special in system.presets else asked
    names = preset_names(found, device)
    return next((name for name in names if name in system.presets), next(iter(system.presets)))


def _with_an_end(options: RunOptions) -> RunOptions:
    ends = (options.total_env_steps, options.max_seconds, options.target_return)
    if all(end is None for end in ends):
        return replace(options, total_env_steps=DEFAULT_ENV_STEPS)
    return options


def _environment(options: RunOptions) -> EnvironmentFactory:
    return EnvironmentFactory(
        options.env,
        options=tuple(options.env_options.items()),
        **vars(options.wrappers),
    )


def _network(options: RunOptions) -> NetworkOptions:
    details = options.network_options
    if options.backend == "serial":  # which must not depend on the machine
        details = replace(details, image_precision="float32")
    return NetworkOptions(options.network, recurrent=options.recurrent, **vars(details))


def _num_actors(options: RunOptions, system: Architecture) -> int:
    """Serial must not depend on the machine; elsewhere the architecture
    says how it uses cores."""
    if options.num_actors is not None:
        return options.num_actors
    cores = 2 if options.backend == "serial" else usable_cores()
    return max(1, system.default_actors(cores))


def grown(config: Any, is_native: bool, num_actors: int) -> Any:
    """A preset's sizes for so many actors. Environments that step one by one are shared among them:
    more would only put off the next update. Of those that step as arrays each actor has enough to
    be worth its turn, and a batch grows with them."""
    known = flat(config)
    num_envs = known.get("num_envs", 0)
    wanted = num_actors * min(num_envs, _LEAST_NATIVE_ENVS)
    if not is_native or wanted <= num_envs:
        return config
    sizes = {"num_envs": wanted}
    if known.get("batch_rows"):
        sizes["batch_rows"] = round(known["batch_rows"] * wanted / num_envs)
    return with_values(config, sizes)


def envs_per_actor(
    options: RunOptions,
    environment: EnvironmentFactory,
    config: Mapping[str, Any],
    num_actors: int,
    asks_device: bool,
) -> int:
    """What is learned from must not depend on how busy the machine is: no clock is asked."""
    if options.envs_per_actor is not None:
        return options.envs_per_actor
    wanted = _NATIVE_ENVS if environment.is_native else _PYTHON_ENVS
    if environment.is_game and environment.is_native:
        wanted = _NATIVE_GAMES
    if environment.is_atari:
        wanted = _NATIVE_ENVS if asks_device else _ATARI_ENVS
    if config.get("num_envs"):
        wanted = config["num_envs"] / num_actors
    if environment.is_atari:
        wanted = min(wanted, _MOST_ATARI_ENVS)
    groups = config.get("groups_per_actor", 1)
    return max(1, round(wanted / groups)) * int(groups)


def _device(options: RunOptions, system: Architecture, is_image: bool) -> str:
    why_not = system.refuses.get("cuda")
    named = options.devices()
    if not named:
        is_small = options.network in ("auto", "mlp") and _widest(options) < _WIDE_ENOUGH_FOR_CUDA
        pays = (is_image or not is_small) and why_not is None
        return "cuda" if pays and torch.cuda.is_available() else "cpu"
    if "cuda" in options.device and why_not is not None:
        raise ConfigurationError(why_not)
    return named[0].partition(":")[0]


def _widest(options: RunOptions) -> int:
    details = options.network_options
    recurrent = details.recurrent_size if options.recurrent != "none" else 0
    return max((*details.hidden_sizes, recurrent))
