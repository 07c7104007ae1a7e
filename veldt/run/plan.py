# SPDX-License-Identifier: Apache-2.0
"""From options to a wired topology: bad input is refused here, before anything starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from veldt import architectures, resources
from veldt.architectures import Architecture
from veldt.backends import BACKENDS
from veldt.backends.process.node_process import check_can_be_sent
from veldt.backends.shared_memory.fabric import bytes_of
from veldt.devices import Compute
from veldt.environments import EnvironmentFactory, Interface
from veldt.errors import ConfigurationError
from veldt.families import ON_CPU, family, preset_names
from veldt.losses.ppo import PPO
from veldt.networks import FirstWeights, NetworkOptions
from veldt.optimizers import Schedule
from veldt.options import DEFAULT_ENV_STEPS, RunOptions
from veldt.options.fields import flat_keys, option_fields, unknown_option, with_values
from veldt.problem import Problem
from veldt.resources import require_bytes, usable_cores
from veldt.role import bound
from veldt.roles.actor import Actor
from veldt.roles.hogwild import Hogwild, SharedModel, weights_history
from veldt.roles.inference import SharedMemoryInference
from veldt.roles.learner import Learner
from veldt.roles.pacing import PacedBatches
from veldt.roles.stream_inference import StreamInference, without_actors
from veldt.run.config_files import LIMITS
from veldt.run.external import declared_spec, with_places
from veldt.topology import BoardSpec, QueueSpec, Topology, lagging
from veldt.types import EnvironmentSpec

_MOST_THREADS_PER_CORE = 4
_MOST_THREADS_UNASKED = 8
_NATIVE_ENVS, _PYTHON_ENVS, _ATARI_ENVS = 64, 16, 8
"""Environments that an actor steps in about a millisecond: vectorised ones, those written in
Python, and Atari."""
_MOST_ATARI_ENVS = 64  # per actor: their frames fill the memory
_WIDE_ENOUGH_FOR_CUDA = 512  # CartPole's two layers of 64 train several times faster on cores
_NATIVE_GAMES = 256  # a game is a row of arrays: 256 of them cost a third more than 64
_LEAST_NATIVE_ENVS = 16  # per actor: stepping them takes hardly longer than stepping two

_SERVERS = (SharedMemoryInference, StreamInference)
_BATCH_SIZES = {"num_envs", "batch_rows"}
"""Options that set how much is learned from at a time."""


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start."""

    architecture: str
    options: RunOptions
    config: Any
    problem: Problem
    topology: Topology
    family: str
    """Task family, from the spaces."""
    preset: str
    """Name of the preset that `config` was made from."""

    def rows_per_update(self) -> int:
        """Rows in one learner's batch: transitions, or steps without the bootstrap row."""
        queue, slots = self._learner_source()
        steps, *columns = queue.layout["reward"].shape
        rows = (steps - 1) * columns[0] if columns else steps
        return rows * slots

    def slots_per_update(self) -> int:
        """Trajectories, or batches of transitions, that one learner takes at a time."""
        return self._learner_source()[1]

    def _learner_source(self) -> tuple[QueueSpec, int]:
        learner = next(node for node in self.topology.nodes if isinstance(node.role, Learner))
        for _, end in learner.ends():
            if isinstance(end.channel, QueueSpec) and end.side == "source":
                source = learner.role.source  # type: ignore[attr-defined]
                is_paced = isinstance(source, PacedBatches)
                return end.channel, source.num_places if is_paced else end.slots_per_batch
        raise ValueError(f"{learner.name} reads no queue")


@contextmanager
def _refusals() -> Iterator[None]:
    """A network or environment that cannot be made is invalid input."""
    try:
        yield
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


@_refusals()
def make_plan(
    architecture: str,
    options: RunOptions,
    own: Mapping[str, Any],
    known: tuple[EnvironmentSpec, Interface] | None = None,
    first: FirstWeights | None = None,
    began: float | None = None,
) -> Plan:
    """Check everything and wire the topology. An environment that is `known` is not made; `began`:
    time.monotonic() when the run's time began."""
    system, backend = architectures.load(architecture), BACKENDS[options.backend]
    if options.backend in system.refuses:
        raise ConfigurationError(system.refuses[options.backend])
    if all(vars(options)[limit] is None for limit in LIMITS):
        options = replace(options, total_env_steps=DEFAULT_ENV_STEPS)
    options = with_places(options)
    environment = EnvironmentFactory(
        options.env, options=tuple(options.env_options.items()), **vars(options.wrappers)
    )
    known = known or declared_spec(options, system)
    if known is not None:
        environment = environment.with_known_spec(*known)
    spec = environment.spec()
    num_parts = max(1, len(environment.parts))
    episodes = -(-options.evaluation_episodes // num_parts) * num_parts  # as many of each
    options = replace(options, evaluation_episodes=episodes)
    is_image = any(leaf.kind == "image" for leaf in spec.observation)
    found = family(spec, options.recurrent)
    _check_devices(options)
    device = _device(options, system, is_image)
    preset = _preset(system, options.preset, found, spec, device)
    is_new = bool(option_fields(system.config).keys() - own.keys())  # config.json names them all
    is_plain = options.network == "auto" and len(spec.observation) == 1
    if is_new and is_plain and preset.endswith(ON_CPU):
        options = replace(options, network="small_conv")  # a third of the Nature network's work
    num_actors = options.num_actors
    if num_actors is None:
        cores = 2 if backend.is_deterministic else usable_cores()
        num_actors = max(1, system.default_actors(cores))
    config = _make_config(system, preset, own)
    is_published = preset.startswith("paper")
    if not is_published and options.envs_per_actor is None and not _BATCH_SIZES & own.keys():
        config = _grown(config, environment.is_native and not environment.is_atari, num_actors)
    width = system.paper_envs_per_actor if preset == "paper" else None
    width = options.envs_per_actor or width
    if width is None:
        width = envs_per_actor(environment, flat_keys(config), num_actors)
        if (asked := own.get("num_envs")) and num_actors * width != asked:
            groups = flat_keys(config).get("groups_per_actor", 1)
            of = f" of {groups} groups" if groups > 1 else ""
            of += f" with {num_parts} tasks or policies" if num_parts > 1 else ""
            raise ConfigurationError(
                f"num_envs {asked} does not split evenly among {num_actors} actors{of}; use"
                f" {num_actors * width}, or another --num-actors"
            )
    # The scores of Atari games differ by orders of magnitude.
    is_atari = found.startswith("atari") and (environment.is_atari or environment.is_envpool)
    if options.wrappers.reward_clip is None and is_atari and system.clips_atari_rewards:
        environment = environment.with_reward_clip(1.0)
    network = options.network_options
    if backend.is_deterministic:  # must not depend on the machine
        network = replace(network, image_precision="float32")
    problem = Problem(
        environment,
        spec,
        NetworkOptions(encoder=options.network, recurrent=options.recurrent, **vars(network)),
        seed=options.seed,
        num_actors=num_actors,
        envs_per_actor=width,
        compute=Compute(
            device,
            _learner_threads(options, system, is_image),
        ),
        schedule=_schedule(options, began),
        first=first,
    )
    topology = system.build(config, problem)
    topology.architecture = architectures.label(architecture)
    if environment.is_external:
        without_actors(topology, problem.external_endpoint(), environment.reward_clip)
    _assign_devices(topology, options)
    if options.extra_lag:
        _add_lag(topology, options.extra_lag)
    require_bytes(
        bytes_of(topology),
        "what travels between the nodes",
        "use fewer --num-actors or --envs-per-actor, or shorter or fewer trajectories",
    )
    if backend.starts_processes:
        check_can_be_sent(topology)
    return Plan(architecture, options, config, problem, topology, found, preset)


def _schedule(options: RunOptions, began: float | None) -> Schedule | None:
    """What schedules follow: env steps, or else the time, except where every bit must repeat."""
    if options.total_env_steps is not None:
        return Schedule(options.total_env_steps)
    if options.max_seconds is None or BACKENDS[options.backend].is_deterministic:
        return None
    passed = 0.0 if began is None else time.monotonic() - began
    return Schedule(seconds=options.max_seconds, began=time.time() - passed)


def _learner_threads(options: RunOptions, system: Architecture, is_image: bool) -> int:
    """OMP_NUM_THREADS if it is set; one on a deterministic backend, because several threads sum
    in another order."""
    asked, cores = resources.THREADS_ASKED, usable_cores()
    backend = BACKENDS[options.backend]
    if backend.is_deterministic:
        return 1
    if asked.isdecimal() and int(asked) >= 1:
        return min(int(asked), _MOST_THREADS_PER_CORE * cores)
    runs_alone = system.actors_wait and backend.stays_on_this_machine
    return min(cores, _MOST_THREADS_UNASKED) if runs_alone and is_image else 1


def _add_lag(topology: Topology, updates: int) -> None:
    """Let actors and inference act with weights that are `updates` versions old."""
    lagged: dict[str, BoardSpec] = {}
    history = weights_history(topology, updates)
    for node in topology.nodes:
        role = node.role
        if isinstance(role, Actor | SharedMemoryInference | StreamInference):
            policy: Any = bound(role.policy, lambda end: lagging(end, updates, lagged))
            if history is not None and hasattr(policy, "weights"):
                policy = replace(policy, weights=history)
            node.role = replace(role, policy=policy)
        elif isinstance(role, Learner) and isinstance(role.gradients, Hogwild):
            model = replace(role.gradients.model, history=history)
            node.role = replace(role, gradients=replace(role.gradients, model=model))
        elif isinstance(role, Learner) and isinstance(role.objective, PPO):
            node.role = replace(role, objective=replace(role.objective, without_lag=False))
    if not lagged and history is None:
        raise ConfigurationError(
            f"in {topology.architecture} no actor or server reads weights from a board, so"
            " extra_lag does not apply to it; try impala"
        )
    for index, board in enumerate(topology.boards):
        spec = lagged.get(board.spec.name, board.spec)
        topology.boards[index] = replace(board, spec=spec)


def _make_config(system: Architecture, preset: str, own: Mapping[str, Any]) -> Any:
    """The preset with the user's values; an unknown name is refused with the nearest known one."""
    known = option_fields(system.config)
    moved = architectures.moved_options(system.name)
    for name, value in own.items():
        if name not in known and name in moved:
            raise ConfigurationError(moved[name])
        if name not in known:
            everything = {**known, **option_fields(RunOptions)}
            raise ConfigurationError(unknown_option(name, everything, value=value))
    return with_values(system.presets[preset], own)


def _preset(
    system: Architecture, asked: str, found: str, spec: EnvironmentSpec, device: str
) -> str:
    """The preset asked for (its variant for Box actions where it has one), or the family's."""
    if asked == "auto":
        names = preset_names(found, device)
        return next((name for name in names if name in system.presets), next(iter(system.presets)))
    special = f"{asked}_continuous"
    preset = special if spec.action.kind == "box" and special in system.presets else asked
    if preset not in system.presets:
        raise ConfigurationError(f"unknown preset '{preset}'; use {', '.join(system.presets)}")
    return preset


def _grown(config: Any, is_native: bool, num_actors: int) -> Any:
    """The config with sizes for so many actors. Environments that step as arrays get a minimum per
    actor, and the batch grows with them; others are shared among the actors."""
    known = flat_keys(config)
    num_envs = known.get("num_envs", 0)
    wanted = num_actors * min(num_envs, _LEAST_NATIVE_ENVS)
    if not is_native or wanted <= num_envs:
        return config
    sizes = {"num_envs": wanted}
    if known.get("batch_rows"):
        sizes["batch_rows"] = round(known["batch_rows"] * wanted / num_envs)
    return with_values(config, sizes)


def envs_per_actor(
    environment: EnvironmentFactory, config: Mapping[str, Any], num_actors: int
) -> int:
    """Environments per actor; never measured, so that a busy machine changes no batch."""
    wanted = _NATIVE_ENVS if environment.is_native else _PYTHON_ENVS
    if environment.is_game and environment.is_native:
        wanted = _NATIVE_GAMES
    if environment.is_atari:
        wanted = _ATARI_ENVS
    if config.get("num_envs"):
        wanted = config["num_envs"] / num_actors
    if environment.is_atari:
        wanted = min(wanted, _MOST_ATARI_ENVS)
    groups = int(config.get("groups_per_actor", 1)) * max(1, len(environment.parts))
    return max(1, round(wanted / groups)) * groups


def _check_devices(options: RunOptions) -> None:
    """Refuse devices that this machine does not have."""
    known = ["cpu"]
    if torch.cuda.is_available():
        known += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    for name in options.devices():
        if name not in known:
            raise ConfigurationError(
                f"device is {name}, which is not on this machine; there is {', '.join(known)}"
            )
        if not BACKENDS[options.backend].stays_on_this_machine and ":" in name:
            raise ConfigurationError(
                f"device names {name}, but on Ray each process is given a GPU of its own and sees"
                " no other; use cuda without a number"
            )


def _assign_devices(topology: Topology, options: RunOptions) -> None:
    """Give each learner and inference server its device, where several are named."""
    named = options.devices()
    if named in ((), ("cpu",), ("cuda",)):
        return
    learners = [node for node in topology.nodes if isinstance(node.role, Learner)]
    servers = [node for node in topology.nodes if isinstance(node.role, _SERVERS)]
    if len(named) == 1:
        named = named * (len(learners) + bool(servers))
    if len(named) not in (len(learners), len(learners) + bool(servers)):
        last = ", then one for the inference server" if servers else ""
        raise ConfigurationError(
            f"device names {len(named)} devices, but {topology.architecture} has {len(learners)}"
            f" learners here; name one for each{last}"
        )
    for index, node in enumerate([*learners, *servers]):
        role, device = node.role, named[min(index, len(named) - 1)]
        weights: object
        if isinstance(role, Learner):
            weights = role.gradients
            node.role = replace(role, compute=replace(role.compute, device=device))
        else:
            assert isinstance(role, _SERVERS)
            weights = role.policy.weights
            node.role = replace(role, policy=replace(role.policy, device=device))
        if isinstance(weights, SharedModel | Hogwild):
            raise ConfigurationError(
                f"all of {topology.architecture} shares one model on one device; use --device cpu"
                " or cuda"
            )


def _device(options: RunOptions, system: Architecture, is_image: bool) -> str:
    why_not = system.refuses.get("cuda")
    named = options.devices()
    if named:
        if "cuda" in options.device and why_not is not None:
            raise ConfigurationError(why_not)
        return named[0].partition(":")[0]
    network = options.network_options
    recurrent = network.recurrent_size if options.recurrent != "none" else 0
    is_small = max((*network.hidden_sizes, recurrent)) < _WIDE_ENOUGH_FOR_CUDA
    pays = is_image or options.network not in ("auto", "mlp") or not is_small
    return "cuda" if pays and why_not is None and torch.cuda.is_available() else "cpu"
