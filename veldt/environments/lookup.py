# SPDX-License-Identifier: Apache-2.0
"""Names of environments: which kind they are, where they are registered, what to do if unknown."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from veldt.environments.spaces import Interface
from veldt.errors import ConfigurationError, extra_module, install, nearest, text_of

ATARI_PREFIX, ENVPOOL_PREFIX = "ALE/", "envpool:"
MINATAR_PREFIX = "MinAtar/"
EXTERNAL_PREFIX = "external:"
GAME_PREFIXES = NATIVE_GAMES, PETTINGZOO_GAMES = "veldt:", "pettingzoo:"
_RAW_ATARI = re.compile(
    r"(?P<game>[A-Z][A-Za-z]+?)(-ram)?(?P<frames>Deterministic|NoFrameskip)?-v[04]"
)
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "pygame": "classic"}
"""The extra that installs a library, by a word in the error message."""
MOST_PORT = 65_535


def one_line(error: BaseException) -> str:
    """The error's text without line breaks."""
    return " ".join(text_of(error).split()) or type(error).__name__


def gymnasium_spec(name: str) -> EnvSpec:
    """The registered spec of a Gymnasium id, including those of ale-py and MinAtar."""
    if name.startswith(ATARI_PREFIX):
        _register_atari(required=True)
    if name.startswith(MINATAR_PREFIX):
        _register_minatar()
    _refuse_raw_atari(name)
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        _register_atari(required=False)
        if name in gymnasium.registry:
            return gymnasium.registry[name]
        reason = one_line(error) if isinstance(error, gymnasium.error.DeprecatedEnv) else ""
        raise _unknown(name, gymnasium.registry, reason) from error


def _refuse_raw_atari(name: str) -> None:
    """Refuse ids of raw frames, which older examples use and no preset can learn from."""
    found = _RAW_ATARI.fullmatch(name)
    if found is None:
        return
    _register_atari(required=False)
    better = f"{ATARI_PREFIX}{found['game']}-v5"
    spec = gymnasium.registry.get(name)
    is_ale = spec is None or "ale_py" in str(spec.entry_point)
    if better in gymnasium.registry and is_ale:
        raise ConfigurationError(
            f"{name} gives raw frames; use {better}, which Veldt resizes, stacks and steps together"
            " (docs/environments.md)"
        )
    if spec is None and found["frames"]:  # a name that only Atari's games have
        raise ConfigurationError(
            f"{name} is one of Atari's; run: {install('atari')}, and use {better}"
        )


def register_extras() -> None:
    """Register the environments of ale-py and MinAtar where they are installed."""
    _register_atari(required=False)
    with suppress(ConfigurationError):
        _register_minatar()


def _register_atari(required: bool) -> None:
    try:
        gymnasium.register_envs(
            extra_module("ale_py", "Atari environments need ale-py", extra="atari")
        )
    except ConfigurationError:
        if required:
            raise


def _register_minatar() -> None:
    """Register MinAtar, whose plugin Gymnasium no longer loads."""
    if any(known.startswith(MINATAR_PREFIX) for known in gymnasium.registry):
        return
    # Without a plotting library it warns on the root logger, which would install a handler there.
    root, quiet = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(quiet)
    root.setLevel(logging.CRITICAL)
    try:
        minatar = extra_module("minatar.gym", "MinAtar environments need minatar", extra="minatar")
        minatar.register_envs()
    finally:
        root.setLevel(level)
        root.removeHandler(quiet)


def envpool_with(task: str) -> Any:
    """The module envpool, if it has the task."""
    envpool = extra_module("envpool", "envpool: environments need EnvPool", extra="envpool")
    tasks = envpool.list_all_envs()
    if task not in tasks:
        raise _unknown(ENVPOOL_PREFIX + task, [ENVPOOL_PREFIX + known for known in tasks])
    return envpool


def _unknown(name: str, known: Iterable[str], reason: str = "") -> ConfigurationError:
    known = list(known)
    stems = {_stem(key): key for key in known}
    near = nearest(name, known, 3) or [stems[key] for key in nearest(_stem(name), stems, 3)]
    remedy = 'give a Gymnasium id, "ALE/...", "envpool:<task>", "veldt:<game>" or "module:function"'
    if near:
        remedy = f"did you mean {' or '.join(near)}?"
    return ConfigurationError(f"unknown environment '{name}'; {reason or remedy}")


def _stem(name: str) -> str:
    """The name without its namespace and version."""
    return re.sub(r"-v\d+$", "", name).split("/")[-1].lower()


def function_path(name: str) -> tuple[str, str] | None:
    """(module, function) of "module:function"; None for other names, "module:Id-v0" among them."""
    module, colon, function = name.partition(":")
    is_path = bool(colon) and all(part.isidentifier() for part in function.split("."))
    return (module, function) if is_path else None


def imported_function(name: str, what: str = "environment") -> Callable[..., Any]:
    """The callable of "module:function"; modules in the working directory are found too."""
    path = function_path(name)
    if path is None:
        raise ConfigurationError(f"the {what} '{name}' is unknown; give module:function")
    module_name, function_name = path
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigurationError(
            f"cannot import '{module_name}' of the {what} '{name}': {one_line(error)}; "
            "run from its folder or put that on PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise ConfigurationError(
            f"the {what} '{name}' is not there: {one_line(error)}; check the function's name"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"the {what} '{name}' is not callable; name a function")
    return found


def missing_extra(name: str | Callable[..., Any], error: BaseException) -> str:
    """A hint for errors about a missing library that an extra installs."""
    if not isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        return ""
    spec = gymnasium.registry.get(name) if isinstance(name, str) else None
    text = f"{one_line(error)} {spec.entry_point if spec else ''}".lower()
    for word, extra in _EXTRAS.items():
        if word in text:
            return f"; run: {install(extra)}"
    return ""


@dataclass(frozen=True)
class ExternalAddress:
    """Where a run listens, and an optional file that describes the spaces."""

    listen: str
    spaces_file: str | None = None


@dataclass(frozen=True)
class ExternalEndpoint:
    """Where simulators, which are no nodes of the run, connect to a stream of its topology."""

    address: str
    interface: Interface
    takes_masks: bool


def external_address(name: str) -> ExternalAddress:
    """Parse the name of an external environment."""
    remedy = (
        "write external:HOST:PORT, such as external:127.0.0.1:5000, optionally with ?spaces=FILE"
    )
    listen, _, setting = name.removeprefix(EXTERNAL_PREFIX).partition("?")
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        raise ConfigurationError(f"'{name}' names no host and port; {remedy}")
    key, _, file = setting.partition("=")
    if setting and (key != "spaces" or not file):
        raise ConfigurationError(f"'{setting}' is not understood in '{name}'; {remedy}")
    return ExternalAddress(listen, file or None)
