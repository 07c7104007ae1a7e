# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to what is run: every bad input ends here, before anything starts."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

import torch

from veldt import architectures
from veldt.backends.process.chaos import Chaos
from veldt.backends.process.sending import check_can_be_sent
from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.families import family, preset_names
from veldt.networks import NetworkConfig
from veldt.options import BACKENDS, DEFAULT_ENV_STEPS, DEVICES, RunOptions
from veldt.problem import Problem
from veldt.topology import BoardSpec, End, Topology
from veldt.types import Parameters

_ROW_SECONDS = 1e-3  # a row should cost an actor about this much, so that overheads do not show
_FEWEST_ENVS, _MOST_ENVS = 8, 64
_WIDE_ENOUGH_FOR_CUDA = 512  # CartPole's two layers of 64 train several times faster on cores
_SERIAL_ENVS_NATIVE, _SERIAL_ENVS = 64, 16


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start."""

    architecture: str
    options: RunOptions
    config: Any
    problem: Problem
    topology: Topology


def make_plan(
    architecture: str,
    options: RunOptions,
    own: Mapping[str, Any],
    restored: Parameters | None = None,
) -> Plan:
    """Check everything and wire the topology; `own` are the architecture's fields by name."""
    module = architectures.load(architecture)
    _check_choice("backend", options.backend, BACKENDS)
    if options.backend not in getattr(module, "BACKENDS", BACKENDS):
        raise ConfigurationError(module.WHY_NOT_EVERYWHERE)
    options = _with_an_end(options)
    try:
        environment = _environment(options)
        spec = environment.spec()
        is_image = any(leaf.kind == "image" for leaf in spec.observation)
        preset = options.preset
        if preset == "auto":
            preset = _auto_preset(module, family(spec, options.recurrent), own)
        _check_choice("preset", preset, tuple(module.PRESETS))
        config = make_config(module, preset, own)
        if preset.startswith("atari") and options.reward_clip is None:
            environment = replace(environment, reward_clip=1.0)
        device = _device(options, is_image)
        asks_device = device == "cuda" and getattr(module, "CENTRAL_INFERENCE", False)
        num_actors = _num_actors(options, module)
        fixed = getattr(config, "environments", 0)
        if fixed and options.envs_per_actor is None:
            # What is learned from must not depend on how busy the machine is.
            options = replace(options, envs_per_actor=max(1, fixed // num_actors))
        problem = Problem(
            environment,
            spec,
            _network(options),
            seed=options.seed,
            num_actors=num_actors,
            envs_per_actor=_envs_per_actor(options, environment, asks_device),
            device=device,
            learner_threads=options.learner_threads,
            total_env_steps=options.total_env_steps,
            restored=restored,
        )
        topology = module.build(config, problem)
        if options.extra_lag:
            add_lag(topology, options.extra_lag)
        if options.backend == "process":
            check_can_be_sent(topology)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return Plan(architecture, options, config, problem, topology)


def add_lag(topology: Topology, updates: int) -> None:
    """Let whoever acts read weights `updates` versions old; until there are as many, version 0."""
    if updates < 0:
        raise ConfigurationError(f"extra_lag is {updates}; use 0 or more")
    lagged = set()
    for node in topology.nodes:
        end = node.arguments.get("policy_port")
        if not isinstance(end, End) or not isinstance(end.channel, BoardSpec):
            continue
        if node.arguments.get("synchronous"):
            raise ConfigurationError(
                f"{topology.architecture} acts with the newest weights by construction, so"
                " extra_lag does not go with it; try impala"
            )
        channel = replace(end.channel, history=updates + 2)
        node.arguments["policy_port"] = End(channel, end.side, (("extra_lag_updates", updates),))
        lagged.add(channel.name)
    if not lagged:
        raise ConfigurationError(
            f"{topology.architecture} has no actors that read a board of weights, so extra_lag does"
            " not go with it; try impala"
        )
    for index, board in enumerate(topology.boards):
        if board.spec.name in lagged:
            spec = replace(board.spec, history=updates + 2)
            topology.boards[index] = replace(board, spec=spec)


def make_config(module: ModuleType, preset: str, own: Mapping[str, Any]) -> Any:
    """The preset with the user's fields in it; misspelt names are met with the nearest one."""
    known = {entry.name for entry in fields(module.Config)}
    for name in own:
        if name not in known:
            everything = known | {entry.name for entry in fields(RunOptions)}
            near = difflib.get_close_matches(name, everything, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}"
            raise ConfigurationError(f"unknown option '{name}'; {hint}")
    return replace(module.PRESETS[preset], **own)


def _auto_preset(module: ModuleType, found: str, own: Mapping[str, Any]) -> str:
    """The preset for this family and, where there is one, for the algorithm asked for."""
    names = preset_names(found, own.get("algorithm"))
    return next(name for name in names if name in module.PRESETS)


def _check_choice(what: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ConfigurationError(f"unknown {what} '{given}'; use {', '.join(choices)}")


def _with_an_end(options: RunOptions) -> RunOptions:
    positive = ("total_env_steps", "max_seconds", "num_actors", "envs_per_actor")
    for name in (*positive, "checkpoint_seconds", "checkpoint_env_steps", "autotune_seconds"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ConfigurationError(f"{name} is {value}; use a positive number")
    if not 0 <= options.seed < 2**63:
        raise ConfigurationError(f"seed is {options.seed}; use a whole number from 0 on")
    if options.chaos is not None and options.backend != "process":
        raise ConfigurationError("chaos strikes processes; use --backend process with --chaos")
    if options.chaos is not None:
        Chaos.parse(options.chaos, options.chaos_spares)  # raises before anything is written
    if options.learner_threads < 1:
        raise ConfigurationError("learner_threads must be 1 or more")
    if options.evaluation_episodes < 0:
        raise ConfigurationError("evaluation_episodes must be 0 or more")
    if options.target_return is not None and options.evaluation_episodes < 1:
        raise ConfigurationError("target_return needs evaluation_episodes of 1 or more")
    ends = (options.total_env_steps, options.max_seconds, options.target_return)
    if all(end is None for end in ends):
        return replace(options, total_env_steps=DEFAULT_ENV_STEPS)
    return options


def _environment(options: RunOptions) -> EnvironmentFactory:
    return EnvironmentFactory(
        options.env,
        options=tuple(options.env_options.items()),
        vectorization=options.vectorization,
        frame_stack=options.frame_stack,
        time_limit=options.time_limit,
        reward_clip=options.reward_clip,
    )


def _network(options: RunOptions) -> NetworkConfig:
    return NetworkConfig(
        encoder=options.network,
        hidden_sizes=options.hidden_sizes,
        activation=options.activation,
        recurrent=options.recurrent,
        recurrent_size=options.recurrent_size,
        last_action_and_reward=options.last_action_and_reward,
        normalize_observations=options.normalize_observations,
        distribution=options.distribution,
    )


def _num_actors(options: RunOptions, module: ModuleType) -> int:
    """Serial must not depend on the machine; elsewhere the architecture says how it uses cores."""
    if options.num_actors is not None:
        return options.num_actors
    cores = 2 if options.backend == "serial" else len(os.sched_getaffinity(0))
    return max(1, module.default_actors(cores))


def _envs_per_actor(options: RunOptions, environment: EnvironmentFactory, asks_device: bool) -> int:
    if options.envs_per_actor is not None:
        return options.envs_per_actor
    if options.backend == "serial":
        return _SERIAL_ENVS_NATIVE if environment.is_native else _SERIAL_ENVS
    if asks_device:
        return _MOST_ENVS  # a GPU answers many rows in the time of one
    wanted = _ROW_SECONDS / environment.measure()
    width = _FEWEST_ENVS
    while width * 2 <= min(wanted, _MOST_ENVS):
        width *= 2
    return width


def _device(options: RunOptions, is_image: bool) -> str:
    _check_choice("device", options.device, DEVICES)
    if options.device == "auto":
        is_small = options.network in ("auto", "mlp") and _widest(options) < _WIDE_ENOUGH_FOR_CUDA
        pays = is_image or not is_small
        return "cuda" if pays and torch.cuda.is_available() else "cpu"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device cuda is not available here; use --device cpu")
    return options.device


def _widest(options: RunOptions) -> int:
    recurrent = options.recurrent_size if options.recurrent != "none" else 0
    return max((*options.hidden_sizes, recurrent))
