# SPDX-License-Identifier: Apache-2.0
"""Describes an environment once, so that any process can make as many copies as it needs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from veldt.environments import lookup, spaces
from veldt.environments.atari import open_atari, open_atari_groups
from veldt.environments.copies import EnvironmentFailure, InProcessVector, error_text
from veldt.environments.spaces import Interface, MaskReader, joined_mask, stacked
from veldt.environments.tasks import makers, task_names
from veldt.environments.vector import OpenedVector, VectorEnvironment
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec, EnvironmentSpec

_NOT_COPIED = (
    lookup.ATARI_PREFIX,
    lookup.ENVPOOL_PREFIX,
    lookup.EXTERNAL_PREFIX,
    *lookup.GAME_PREFIXES,
)
_LARGEST_SEED = 2**31 - 1  # ale-py and EnvPool take 32-bit seeds


@dataclass(frozen=True)
class _Reading:
    """Facts that were read from one instance."""

    spec: EnvironmentSpec
    interface: Interface
    mask_in_info: bool
    is_native: bool


@dataclass(frozen=True)
class EnvironmentFactory:
    """Picklable description of an environment, which node processes receive at start.

    Args:
        env: Gymnasium id, "ALE/...", "envpool:<task>", "module:function", a game of several players
            ("veldt:<game>", "pettingzoo:<module>"), simulators that connect to a run
            ("external:HOST:PORT"), or a picklable callable that returns a gymnasium.Env (or a
            gymnasium VectorEnv, if it takes num_envs). Several ids or functions, joined by commas,
            are tasks that one network learns: each copy has one of them.
        options: Keyword arguments of the environment, as a mapping or as pairs.
        vectorization: auto | in_process. auto: the native vector environment where one is
            registered, else in_process.
        frame_stack: How many of the last observations are joined into one. ALE/ ids stack 4 unless
            more than 1 is given; EnvPool's Atari has its own option stack_num instead.
        time_limit: Env steps after which an episode is truncated.
        reward_clip: Bound of rewards in training, [-c, c]; reported returns are not clipped.
        task_input: With several tasks: whether observations have the number of the task.
        policies: The agents of each policy of a PettingZoo game, as "wolf=a,b;sheep=c"; empty: one
            policy for all.
    """

    env: str | Callable[..., object]
    options: tuple[tuple[str, Any], ...] = ()
    vectorization: str = "auto"
    frame_stack: int = 1
    time_limit: int | None = None
    reward_clip: float | None = None
    task_input: bool = False
    policies: str = ""
    _read: _Reading | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = {"policies": self.policies} if self.policies else {}
        object.__setattr__(self, "options", tuple({**dict(self.options), **own}.items()))
        if own and not self._begins_with(lookup.PETTINGZOO_GAMES):
            raise ConfigurationError(
                f"'{self.name}' has no named agents; leave policies out, or name a pettingzoo: game"
            )

        if self.task_input and not self.tasks:
            raise ConfigurationError(f"task_input needs several tasks, and {self.name} is one")

    @property
    def name(self) -> str:
        """The id, or where the callable is defined."""
        if isinstance(self.env, str):
            return self.env
        function = getattr(self.env, "func", self.env)
        return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks where there are several."""
        return task_names(self.env)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the environments are, in turn: several tasks, or the policies of a game's agents."""
        return self.tasks or self.spec().policies

    @property
    def is_atari(self) -> bool:
        return self._begins_with(lookup.ATARI_PREFIX)

    @property
    def is_envpool(self) -> bool:
        return self._begins_with(lookup.ENVPOOL_PREFIX)

    @property
    def is_game(self) -> bool:
        """Whether it has several players, each with a column of its own."""
        return self._begins_with(lookup.GAME_PREFIXES)

    @property
    def is_external(self) -> bool:
        """Whether simulators in other processes step it and connect to the run."""
        return self._begins_with(lookup.EXTERNAL_PREFIX)

    def _begins_with(self, prefix: str | tuple[str, ...]) -> bool:
        return isinstance(self.env, str) and not self.tasks and self.env.startswith(prefix)

    @property
    def is_native(self) -> bool:
        """Whether many copies are stepped by one vectorised implementation."""
        return self._reading().is_native

    def spec(self) -> EnvironmentSpec:
        """Shapes and kinds, read once from an instance; cached and pickled."""
        return self._reading().spec

    def interface(self) -> Interface:
        """The Gymnasium spaces; cached like `spec`."""
        return self._reading().interface

    def with_known_spec(self, spec: EnvironmentSpec, interface: Interface) -> EnvironmentFactory:
        """A copy that knows its spec, so that no instance is made to read it."""
        known = replace(self)
        object.__setattr__(known, "_read", _Reading(spec, interface, False, False))
        return known

    def with_reward_clip(self, bound: float) -> EnvironmentFactory:
        """A copy with `reward_clip`, which does not affect the spec."""
        clipped = replace(self, reward_clip=bound)
        object.__setattr__(clipped, "_read", self._read)
        return clipped

    def make(self, num_envs: int, seed: int, render: bool = False) -> VectorEnvironment:
        """Make a vector of environments; the same seed gives the same episodes.

        Args:
            num_envs: How many environments.
            seed: Seed of the first environment.
            render: Whether `render()` will be called.
        """
        if num_envs < 1:
            raise ConfigurationError(f"num_envs is {num_envs}; use 1 or more")
        reading, seed = self._reading(), seed % (_LARGEST_SEED - num_envs)
        return self._over(reading, open_vector(self, num_envs, seed, render), seed)

    def wrapping(self, env: VectorEnv, seed: int) -> VectorEnvironment:
        """Wrap a vector environment over this game that has one column of decisions per game."""
        seed = seed % (_LARGEST_SEED - env.num_envs)
        opened = OpenedVector(env, AutoresetMode(env.metadata["autoreset_mode"]))
        reading = self._reading()
        one_column = replace(reading, spec=replace(reading.spec, rows_per_env_step=1, policies=()))
        return self._over(one_column, opened, seed)

    def make_groups(
        self, num_groups: int, num_envs: int, seed: int
    ) -> list[VectorEnvironment] | None:
        """Groups of `num_envs` environments that alternate on one thread; None except for Atari."""
        seed = seed % (_LARGEST_SEED - num_groups * num_envs)
        groups = open_atari_groups(self, num_groups, num_envs) if self.is_atari else None
        if groups is None:
            return None
        return [self._over(self._reading(), opened, seed) for opened in groups]

    def _over(self, reading: _Reading, opened: OpenedVector, seed: int) -> VectorEnvironment:
        spec, mask = reading.spec, None
        if spec.action_mask_size:
            mask = MaskReader(spec.action, opened.env.num_envs, reading.mask_in_info)
        return VectorEnvironment(
            opened,
            spec,
            spaces.leaf_readers(opened.env.single_observation_space, mask is not None),
            mask,
            seed,
            self._stack_depth,
            self.reward_clip,
        )

    @property
    def _stack_depth(self) -> int:
        return 1 if self.is_atari else self.frame_stack

    def _reading(self) -> _Reading:
        if self._read is None:
            opened = open_vector(self, num_envs=1, seed=0)
            try:
                object.__setattr__(self, "_read", self._read_from(opened))
            except EnvironmentFailure as error:
                raise ConfigurationError(str(error)) from error
            finally:
                opened.env.close()
        assert self._read is not None
        return self._read

    def _read_from(self, opened: OpenedVector) -> _Reading:
        env = opened.env
        action = spaces.action_spec(env.single_action_space)
        observation_space = env.single_observation_space
        is_native = not isinstance(env, SyncVectorEnv)
        in_observation = in_info = False
        mask: np.ndarray | None = None
        if action.kind != "box" or not is_native:
            observation, info = env.reset() if opened.seeded else env.reset(seed=0)
        if action.kind != "box":
            entries = getattr(observation_space, "spaces", {})
            in_observation = isinstance(entries, Mapping) and ACTION_MASK in entries
            in_info = not in_observation and ACTION_MASK in info
            if in_observation or in_info:
                masks = observation[ACTION_MASK] if in_observation else info[ACTION_MASK]
                one = tuple(part[0] for part in masks) if isinstance(masks, tuple) else masks[0]
                mask = joined_mask(sum(action.sizes), one)
        if not is_native:
            _try_step(opened, action, mask)
        readers = spaces.leaf_readers(observation_space, in_observation)
        spec = EnvironmentSpec(
            id=self.name,
            observation=tuple(stacked(reader.leaf, self._stack_depth) for reader in readers),
            action=action,
            action_mask_size=0 if mask is None else mask.size,
            same_step_reset=opened.autoreset != AutoresetMode.NEXT_STEP,
            frames_per_step=opened.frames_per_step,
            rows_per_env_step=opened.rows_per_env_step,
            policies=opened.policies,
        )
        action_space = opened.action_space or env.single_action_space
        interface = Interface(observation_space, action_space, in_observation, self._stack_depth)
        one_by_one = not is_native or self.name.startswith(lookup.PETTINGZOO_GAMES)
        return _Reading(spec, interface, in_info, not one_by_one)


@dataclass(frozen=True)
class Environments:
    """The environments of one actor, in groups of equal width that it steps one after the other."""

    factory: EnvironmentFactory
    num_envs: int
    num_groups: int = 1

    def __post_init__(self) -> None:
        count, what = len(self.factory.parts), "tasks" if self.factory.tasks else "agents"
        if count and self.width % count:
            raise ConfigurationError(
                f"{self.width} environments cannot be shared equally by {count} {what}; use a"
                f" multiple of {count}"
            )

    @property
    def width(self) -> int:
        return self.num_envs // self.num_groups


def _try_step(opened: OpenedVector, action: ActionSpec, mask: np.ndarray | None) -> None:
    """One step, so that environments of an older interface are refused before a run starts."""
    allowed = None if mask is None else mask[None].astype(bool)
    drawn = spaces.random_actions(action, 1, np.random.default_rng(0), allowed)
    offset = spaces.action_offset(opened.env.single_action_space)
    opened.env.step(drawn if offset is None else drawn + offset)


def open_vector(
    factory: EnvironmentFactory, num_envs: int, seed: int, render: bool = False
) -> OpenedVector:
    """The vector environment of `factory`; raises ConfigurationError with one line."""
    if factory.is_external:
        raise ConfigurationError(
            f"the environment '{factory.name}' is a simulator that connects to a run of seed_rl;"
            " name one of the same spaces with --env, or let it connect to 'veldt serve'"
        )
    options, is_atari = dict(factory.options), factory.is_atari
    if is_atari or factory.is_envpool or factory.is_game:
        _require_auto(factory)
    try:
        if is_atari:
            return open_atari(factory, options, num_envs)
        if factory.is_envpool:
            return _open_envpool(factory, options, num_envs, seed)
        if factory.is_game:
            return _open_game(factory, options, num_envs)
        if render:
            options["render_mode"] = "rgb_array"
        return _open_gymnasium(factory, options, num_envs)
    except ConfigurationError:
        raise
    except (TypeError, ImportError, gymnasium.error.Error) as error:
        raise ConfigurationError(
            f"cannot make the environment '{factory.name}': {lookup.one_line(error)}"
            f"{lookup.missing_extra(factory.env, error)}"
        ) from error
    except EnvironmentFailure as error:
        raise ConfigurationError(str(error)) from error
    except (Exception, SystemExit) as error:  # a user's factory may raise anything
        raise ConfigurationError(
            f"cannot make the environment '{factory.name}': {error_text(error)}"
        ) from error


def _require_auto(factory: EnvironmentFactory) -> None:
    if factory.vectorization != "auto":
        raise ConfigurationError(
            f"'{factory.name}' makes a whole vector environment; leave vectorization at auto"
        )


def _open_game(factory: EnvironmentFactory, options: dict[str, Any], num_envs: int) -> OpenedVector:
    """Every seat of every game is a column."""
    if factory.time_limit is not None:
        raise ConfigurationError(
            f"'{factory.name}' ends games by its own rules; leave time_limit out"
        )
    # By name, because games are no part of the core.
    open_columns = lookup.imported_function("veldt.games:open_columns", "game")
    columns, rows = open_columns(factory.name, num_envs, options)
    game = columns.game
    of_game = (game.spec.policies, game.action_space)
    return OpenedVector(columns, AutoresetMode.SAME_STEP, 1, rows, *of_game)


def _open_envpool(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int, seed: int
) -> OpenedVector:
    """EnvPool always resets on the next step and receives its seed at construction."""
    if factory.time_limit is not None:
        options["max_episode_steps"] = factory.time_limit
    task = factory.name.removeprefix(lookup.ENVPOOL_PREFIX)
    arguments = {"num_threads": 1, **options}
    env = lookup.envpool_with(task).make(
        task, env_type="gymnasium", num_envs=num_envs, seed=seed, **arguments
    )
    return OpenedVector(
        env,
        AutoresetMode.NEXT_STEP,
        frames_per_step=int(env.config.get("frame_skip", 1)),
        seeded=True,
        life_loss="resets" if arguments.get("episodic_life") else "none",
    )


def _open_gymnasium(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int
) -> OpenedVector:
    """A native vector environment where there is one and it is wanted, else copies."""
    if factory.tasks:
        return _open_tasks(factory, options, num_envs)
    env = factory.env
    make: Callable[..., gymnasium.Env] = _make_called
    native: Callable[..., Any] | None = None
    if isinstance(env, str) and lookup.function_path(env) is None:
        spec, make = lookup.gymnasium_spec(env), _make_registered
        if factory.vectorization == "auto" and spec.vector_entry_point is not None:
            native = _native_creator(spec)
    else:
        creator = _resolve(env)
        if "num_envs" in inspect.signature(creator).parameters:
            _require_auto(factory)
            native = creator
    if native is not None:
        return _open_native(factory, native, options, num_envs)
    copy = functools.partial(make, env, options, factory.time_limit)
    copies = InProcessVector([copy] * num_envs, factory.name)
    return OpenedVector(copies, AutoresetMode.NEXT_STEP)


def _open_tasks(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int
) -> OpenedVector:
    def make(task: str) -> gymnasium.Env:
        if task.startswith(_NOT_COPIED):
            raise ConfigurationError(
                f"{task} cannot be one of several tasks; name Gymnasium ids or module:function"
            )
        is_id = lookup.function_path(task) is None
        called = _make_registered if is_id else _make_called
        return called(task, options, factory.time_limit)

    copies = makers(make, factory.tasks, num_envs, factory.task_input)
    return OpenedVector(InProcessVector(copies, factory.name), AutoresetMode.NEXT_STEP)


def _resolve(env: str | Callable[..., Any]) -> Callable[..., Any]:
    return lookup.imported_function(env) if isinstance(env, str) else env


def _make_registered(name: str, options: dict[str, Any], time_limit: int | None) -> gymnasium.Env:
    lookup.gymnasium_spec(name)  # a fresh process may have to import what registers it
    if time_limit is not None:
        options = {**options, "max_episode_steps": time_limit}
    return gymnasium.make(name, disable_env_checker=True, **options)


def _make_called(env: Any, options: dict[str, Any], time_limit: int | None) -> gymnasium.Env:
    made = _resolve(env)(**options)
    if not isinstance(made, gymnasium.Env):
        raise ConfigurationError(
            f"{env} returned {type(made).__name__}; it must return a gymnasium.Env "
            "(or take num_envs and return a gymnasium VectorEnv)"
        )
    return made if time_limit is None else gymnasium.wrappers.TimeLimit(made, time_limit)


def _native_creator(spec: EnvSpec) -> Callable[..., Any]:
    entry = spec.vector_entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    arguments = dict(spec.kwargs)
    if spec.max_episode_steps is not None:
        arguments.setdefault("max_episode_steps", spec.max_episode_steps)
    assert creator is not None
    return functools.partial(creator, **arguments)


def _open_native(
    factory: EnvironmentFactory,
    creator: Callable[..., Any],
    options: dict[str, Any],
    num_envs: int,
) -> OpenedVector:
    accepted = inspect.signature(creator).parameters
    if factory.time_limit is not None:
        if "max_episode_steps" not in accepted:
            raise ConfigurationError(
                f"'{factory.name}' does not take max_episode_steps, so time_limit cannot be set; "
                "use vectorization in_process or put the limit into the environment"
            )
        options["max_episode_steps"] = factory.time_limit
    # Refuses unknown options before the constructor starts anything.
    inspect.signature(creator).bind(num_envs=num_envs, **options)
    env = creator(num_envs=num_envs, **options)
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigurationError(
            f"'{factory.name}' takes num_envs but returned {type(env).__name__}; "
            "it must return a gymnasium VectorEnv"
        )
    mode = env.metadata.get("autoreset_mode")
    if mode is None or mode == AutoresetMode.DISABLED:
        found = "does not declare when it resets" if mode is None else "does not reset by itself"
        raise ConfigurationError(
            f"'{factory.name}' {found}; set metadata['autoreset_mode'] of the vector environment to"
            " NEXT_STEP or SAME_STEP"
        )
    return OpenedVector(env, AutoresetMode(mode))
