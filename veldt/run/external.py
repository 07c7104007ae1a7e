# SPDX-License-Identifier: Apache-2.0
"""Runs on external simulators: the spaces they declare, and when their clients come and go."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.architectures import Architecture
from veldt.backends import BACKENDS
from veldt.environments import EnvironmentFactory, Interface
from veldt.environments.lookup import EXTERNAL_PREFIX, ExternalAddress, external_address
from veldt.environments.spaces import external_interface, external_spec, space_from
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.roles.stream_inference import CONNECTED
from veldt.run.process import Terminated, is_ending
from veldt.telemetry.counters import NodeSnapshot
from veldt.telemetry.record import EventSort
from veldt.types import EnvironmentSpec

_MOST_ENVIRONMENTS = 64
"""Environments that may be connected at a time, by default."""
_SPACES, _ENVIRONMENTS = "spaces", "environments"
_KEYS = ("observation_space", "action_space", "action_masks")
_WITHOUT_MEANING = {"frame_stack": 1, "time_limit": None, "vectorization": "auto"}
"""Wrappers that do not apply where a simulator steps the environment, with their defaults."""


def is_external(options: RunOptions) -> bool:
    return isinstance(options.env, str) and options.env.startswith(EXTERNAL_PREFIX)


def with_declared_spaces(
    architecture: str, options: RunOptions, say: Callable[[str], None]
) -> RunOptions:
    """The options with the spaces of an external environment: those of a file, or of the first
    client, which is waited for. Options of other runs are returned as they are."""
    if not is_external(options):
        return options
    address = _checked(options, architectures.load(architecture))
    _check_free(address.listen)
    if _SPACES in options.env_options:
        return options
    if address.spaces_file is not None:
        declared: dict[str, object] = {_SPACES: _read(address.spaces_file)}
        return replace(options, env_options={**options.env_options, **declared})
    from veldt.wire.external import first_hello
    from veldt.wire.security import from_environment

    say(f"waiting for the first client at {address.listen}, which declares its spaces")
    hello = first_hello(address.listen, from_environment(address.listen), lambda: not is_ending())
    if hello is None:
        raise Terminated
    spaces = {
        "observation_space": json.loads(hello.observation_space),
        "action_space": json.loads(hello.action_space),
        "action_masks": hello.action_masks,
    }
    declared = {_SPACES: spaces, _ENVIRONMENTS: hello.environments}
    return replace(options, env_options={**options.env_options, **declared})


def _check_free(listen: str) -> None:
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {listen}: {error}; choose another port, or end what listens there"
        ) from error


def _read(file: str) -> dict[str, Any]:
    example = '{"observation_space": {...}, "action_space": {...}} (docs/serving.md)'
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read spaces from {file}: {error}; {example}") from error
    if not isinstance(found, dict) or set(found) - set(_KEYS) or not set(_KEYS[:2]) <= set(found):
        raise ConfigurationError(f"{file} does not describe spaces; expected is {example}")
    return found


def _checked(options: RunOptions, system: Architecture) -> ExternalAddress:
    """The address the run listens on, if its options and the architecture allow it."""
    if not system.takes_external:
        raise ConfigurationError(
            "only seed_rl takes external:, since its actors hold no weights; other architectures"
            " step their environments themselves"
        )
    if BACKENDS[options.backend].is_deterministic:
        raise ConfigurationError(
            "clients connect at any time, and the serial backend must repeat every bit of a run;"
            " use --backend process with external:"
        )
    for name, default in _WITHOUT_MEANING.items():
        if getattr(options.wrappers, name) != default:
            raise ConfigurationError(
                f"{name} does not go with external:, where the simulator decides; leave it out"
            )
    return external_address(str(options.env))


def declared_spec(
    options: RunOptions, system: Architecture
) -> tuple[EnvironmentSpec, Interface] | None:
    """The declared external environment of a run; None for runs on other environments."""
    if not is_external(options):
        return None
    _checked(options, system)
    name, spaces = str(options.env), options.env_options.get(_SPACES)
    if not isinstance(spaces, dict):
        raise ConfigurationError(
            f"the spaces of '{name}' are not known before a client connects; append"
            " ?spaces=FILE (docs/serving.md)"
        )
    interface = external_interface(
        space_from(spaces.get("observation_space")), space_from(spaces.get("action_space"))
    )
    return external_spec(name, interface, bool(spaces.get("action_masks", False))), interface


def with_places(options: RunOptions) -> RunOptions:
    """The options with the number of clients and of environments per client, where that is open: as
    many environments as the first client has. Options of other runs are returned as they are."""
    if not is_external(options):
        return options
    declared = options.env_options.get(_ENVIRONMENTS, 1)
    per_client = options.envs_per_actor or (declared if isinstance(declared, int) else 1)
    clients = options.num_actors or max(1, _MOST_ENVIRONMENTS // per_client)
    return replace(options, num_actors=clients, envs_per_actor=per_client)


class ClientLog:
    """Reports when clients come and go."""

    def __init__(
        self, environment: EnvironmentFactory, note: Callable[[EventSort, str], None]
    ) -> None:
        self._listen = external_address(environment.name).listen if environment.is_external else ""
        self._note, self._before = note, -1

    def update(self, snapshots: Mapping[str, NodeSnapshot]) -> None:
        now = sum(int(each.counters.get(CONNECTED, 0)) for each in snapshots.values())
        if not self._listen or now == self._before:
            return
        self._before = now
        text = f"{now} environments of clients" if now else "no client is connected: waiting"
        self._note("clients", f"{text} at {self._listen}")
