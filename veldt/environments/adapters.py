# SPDX-License-Identifier: Apache-2.0
"""Opens an environment by its name as one Gymnasium vector environment.

A Gymnasium id (native vector entry point, in-process or subprocess vector), "ALE/..." on ale-py's
own vector environment, "envpool:<task>", "veldt:<game>",
"pettingzoo:<module>", "module:function" or a callable.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from veldt.environments import lookup
from veldt.environments.atari import open_atari
from veldt.environments.processes import SubprocessVector
from veldt.environments.resilience import (
    EnvironmentFailure,
    InProcessVector,
    ResilientEnvironment,
    described,
)
from veldt.environments.vector import MODES, OpenedVector
from veldt.errors import ConfigurationError

if TYPE_CHECKING:
    from veldt.environments.factory import EnvironmentFactory


def open_vector(
    factory: EnvironmentFactory, num_envs: int, seed: int, render: bool = False
) -> OpenedVector:
    """The vector environment of `factory`; raises ConfigurationError with one line."""
    if factory.is_external:
        raise ConfigurationError(
            f"the environment '{factory.name}' is a simulator that connects to a run of seed_rl;"
            " name one of the same spaces with --env, or let it connect to 'veldt serve'"
        )
    options = dict(factory.options)
    try:
        if factory.is_atari:
            return open_atari(factory, options, num_envs)
        if factory.is_envpool:
            return _open_envpool(factory, options, num_envs, seed)
        if factory.is_game:
            return _open_game(factory, options, num_envs)
        if render:
            options["render_mode"] = "rgb_array"
        if isinstance(factory.env, str) and lookup.function_path(factory.env) is None:
            return _open_registered(factory, factory.env, options, num_envs)
        return _open_callable(factory, options, num_envs)
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
            f"cannot make the environment '{factory.name}': {described(error)}"
        ) from error


def _open_game(factory: EnvironmentFactory, options: dict[str, Any], num_envs: int) -> OpenedVector:
    """One policy plays all seats; every seat of every game is a column."""
    from veldt.games import make_game, num_players  # games import this package
    from veldt.games.seats import SeatColumns

    if factory.vectorization not in ("auto", "native") or factory.time_limit is not None:
        raise ConfigurationError(
            f"'{factory.name}' steps many games together and ends them by its own rules; leave"
            " vectorization at auto and time_limit out"
        )
    if factory.autoreset not in ("default", "same_step"):
        raise ConfigurationError(f"'{factory.name}' resets by itself; leave autoreset out")
    players = num_players(factory.name, **options)
    games = make_game(factory.name, -(-num_envs // players), **options)
    rows = 1 if games.spec.simultaneous else players
    columns = SeatColumns(games, num_envs)
    return OpenedVector(columns, AutoresetMode.SAME_STEP, rows_per_env_step=rows)


def _open_envpool(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int, seed: int
) -> OpenedVector:
    """EnvPool always resets on the next step and receives its seed at construction."""
    if factory.vectorization not in ("auto", "native") or factory.autoreset not in (
        "default",
        "next_step",
    ):
        raise ConfigurationError(
            f"'{factory.name}' runs on EnvPool, which resets on the next step; "
            "leave vectorization at auto and autoreset at default"
        )
    if factory.time_limit is not None:
        options["max_episode_steps"] = factory.time_limit
    envpool = lookup.envpool_module()
    task = factory.name.removeprefix(lookup.ENVPOOL_PREFIX)
    lookup.check_envpool_task(envpool, task)
    arguments = {"num_threads": 1, **options}
    env = envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=seed, **arguments)
    return OpenedVector(
        env,
        AutoresetMode.NEXT_STEP,
        frames_per_step=int(env.config.get("frame_skip", 1)),
        seeded=True,
        life_loss="resets" if arguments.get("episodic_life") else "none",
    )


def _open_registered(
    factory: EnvironmentFactory, name: str, options: dict[str, Any], num_envs: int
) -> OpenedVector:
    spec = lookup.gymnasium_spec(name)
    if factory.vectorization in ("auto", "native") and spec.vector_entry_point is not None:
        creator = _native_creator(spec)
        suits = factory.autoreset == "default" or _offers(creator, MODES[factory.autoreset])
        if suits or factory.vectorization == "native":
            return _open_native(factory, creator, options, num_envs)
    if factory.vectorization == "native":
        raise ConfigurationError(
            f"'{name}' has no native vector entry point; use vectorization in_process or subprocess"
        )
    if factory.time_limit is not None:
        options["max_episode_steps"] = factory.time_limit
    return _open_copies(factory, functools.partial(_make_registered, name, options), num_envs)


def _open_callable(
    factory: EnvironmentFactory, options: dict[str, Any], num_envs: int
) -> OpenedVector:
    creator = _resolve(factory.env)
    if "num_envs" in inspect.signature(creator).parameters:
        if factory.vectorization not in ("auto", "native"):
            raise ConfigurationError(
                f"'{factory.name}' makes a whole vector environment; leave vectorization at auto"
            )
        return _open_native(factory, creator, options, num_envs)
    if factory.vectorization == "native":
        raise ConfigurationError(
            f"'{factory.name}' takes no num_envs, so it cannot make a native vector environment; "
            "use vectorization in_process or subprocess"
        )
    make = functools.partial(_make_called, factory.env, options, factory.time_limit)
    return _open_copies(factory, make, num_envs)


def _resolve(env: str | Callable[..., Any]) -> Callable[..., Any]:
    return lookup.imported_function(env) if isinstance(env, str) else env


def _make_registered(name: str, options: dict[str, Any]) -> gymnasium.Env:
    lookup.gymnasium_spec(name)  # a fresh process may have to import what registers it
    return gymnasium.make(name, disable_env_checker=True, **options)


def _make_called(
    env: str | Callable[..., Any], options: dict[str, Any], time_limit: int | None
) -> gymnasium.Env:
    made = _resolve(env)(**options)
    if not isinstance(made, gymnasium.Env):
        raise ConfigurationError(
            f"{env} returned {type(made).__name__}; it must return a gymnasium.Env "
            "(or take num_envs and return a gymnasium VectorEnv)"
        )
    return made if time_limit is None else gymnasium.wrappers.TimeLimit(made, time_limit)


def _open_copies(
    factory: EnvironmentFactory, make: Callable[[], gymnasium.Env], num_envs: int
) -> OpenedVector:
    follows = factory.autoreset in ("default", "next_step")
    mode = AutoresetMode.NEXT_STEP if follows else AutoresetMode.SAME_STEP
    if factory.vectorization == "subprocess":
        return OpenedVector(SubprocessVector(make, factory.name, num_envs, mode), mode)
    copies = [
        functools.partial(ResilientEnvironment, make, factory.name, number)
        for number in range(num_envs)
    ]
    return OpenedVector(InProcessVector(copies, copy=False, autoreset_mode=mode), mode)


def _native_creator(spec: EnvSpec) -> Callable[..., Any]:
    entry = spec.vector_entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    arguments = dict(spec.kwargs)
    if spec.max_episode_steps is not None:
        arguments.setdefault("max_episode_steps", spec.max_episode_steps)
    assert creator is not None
    return functools.partial(creator, **arguments)


def _offers(creator: Callable[..., Any], mode: AutoresetMode) -> bool:
    if "autoreset_mode" in inspect.signature(creator).parameters:
        return True
    metadata = getattr(getattr(creator, "func", creator), "metadata", {})
    return metadata.get("autoreset_mode") == mode


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
    wanted = MODES.get(factory.autoreset)
    if wanted is not None and "autoreset_mode" in accepted:
        options["autoreset_mode"] = wanted
    # Refuses unknown options before the constructor starts anything.
    inspect.signature(creator).bind(num_envs=num_envs, **options)
    env = creator(num_envs=num_envs, **options)
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigurationError(
            f"'{factory.name}' takes num_envs but returned {type(env).__name__}; "
            "it must return a gymnasium VectorEnv"
        )
    mode = env.metadata.get("autoreset_mode", wanted)
    if mode is None:
        raise ConfigurationError(
            f"'{factory.name}' does not declare when it resets; set metadata['autoreset_mode'] of"
            " the vector environment, or the option autoreset"
        )
    if wanted is not None and mode != wanted:
        raise ConfigurationError(
            f"'{factory.name}' resets in mode {AutoresetMode(mode).name.lower()}, not "
            f"{factory.autoreset}; leave autoreset at default or use vectorization in_process"
        )
    return OpenedVector(env, AutoresetMode(mode))
