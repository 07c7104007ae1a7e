# SPDX-License-Identifier: Apache-2.0
"""Runs whose simulators are elsewhere: what their environments are like, and whether any is
there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.architectures import Architecture
from veldt.environments import EnvironmentFactory, Interface
from veldt.environments.external_spaces import (
    ExternalAddress,
    described,
    external_address,
    external_interface,
    external_spec,
    space_from,
)
from veldt.environments.lookup import EXTERNAL_PREFIX
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.roles.stream_inference import CONNECTED
from veldt.run.signals import Terminated, is_ending
from veldt.telemetry.counters import NodeSnapshot
from veldt.telemetry.record import EventSort
from veldt.types import EnvironmentSpec

DEFAULT_ENVIRONMENTS = 64
"""All that may be connected at a time, where nothing else is said."""
_SPACES, _ENVIRONMENTS = "spaces", "environments"
_KEYS = ("observation_space", "action_space", "action_masks")
_REMIND_SECONDS = 30.0


def is_external(options: RunOptions) -> bool:
    return isinstance(options.env, str) and options.env.startswith(EXTERNAL_PREFIX)


def declared(architecture: str, options: RunOptions, say: Callable[[str], None]) -> RunOptions:
    """The options of a run with the spaces of its external environment in them: from a file, or
    from the first client, which is waited for. Other runs' options stay as they are."""
    if not is_external(options):
        return options
    address = _checked(options, architectures.load(architecture))
    _check_free(address.listen)
    if _SPACES in options.env_options:
        return options
    if address.spaces_file is not None:
        return _with(options, _read(address.spaces_file), None)
    from veldt.wire.declaration import first_declaration
    from veldt.wire.security import from_environment

    say(f"waiting for the first client at {address.listen}, which says what its spaces are")
    security = from_environment(address.listen)
    found = first_declaration(address.listen, security, lambda: not is_ending())
    if found is None:
        raise Terminated
    interface = found.interface
    spaces = {
        "observation_space": described(interface.observation_space),
        "action_space": described(interface.action_space),
        "action_masks": found.action_masks,
    }
    return _with(options, spaces, found.environments)


def _check_free(listen: str) -> None:
    """Refuse an address that cannot be listened on before anything starts."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {listen}: {error}; choose another port, or end what listens there"
        ) from error


def _with(options: RunOptions, spaces: Mapping[str, Any], environments: int | None) -> RunOptions:
    told: dict[str, object] = {_SPACES: dict(spaces)}
    if environments is not None:
        told[_ENVIRONMENTS] = environments
    return replace(options, env_options={**options.env_options, **told})


def _read(file: str) -> Mapping[str, Any]:
    example = '{"observation_space": {...}, "action_space": {...}} (docs/serving.md)'
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read spaces from {file}: {error}; {example}") from error
    if not isinstance(found, dict) or set(found) - set(_KEYS) or not set(_KEYS[:2]) <= set(found):
        raise ConfigurationError(f"{file} does not describe spaces; expected is {example}")
    return found


_TAKES_NONE = {"frame_stack": 1, "time_limit": None, "vectorization": "auto"}
"""Wrappers that have no meaning where a simulator drives, with their defaults."""


def _checked(options: RunOptions, system: Architecture) -> ExternalAddress:
    """Where the run listens, if its options and the architecture go together."""
    if not system.takes_external:
        raise ConfigurationError(
            "only seed_rl takes external:, since its actors hold no weights; other architectures"
            " step their environments themselves"
        )
    if options.backend == "serial":
        raise ConfigurationError(
            "clients come and go by the clock, and the serial backend repeats every bit of a run;"
            " use --backend process with external:"
        )
    for name, default in _TAKES_NONE.items():
        if getattr(options.wrappers, name) != default:
            raise ConfigurationError(
                f"{name} does not go with external:, where the simulator decides; leave it out"
            )
    return external_address(str(options.env))


def known(options: RunOptions, system: Architecture) -> tuple[EnvironmentSpec, Interface] | None:
    """The external environment of a run as it was declared; None for others."""
    if not is_external(options):
        return None
    _checked(options, system)
    name = str(options.env)
    spaces = options.env_options.get(_SPACES)
    if not isinstance(spaces, dict):
        raise ConfigurationError(
            f"what the environments of '{name}' are like is not known before a client comes; give"
            " ?spaces=FILE behind it (docs/serving.md)"
        )
    interface = external_interface(
        space_from(spaces.get("observation_space")), space_from(spaces.get("action_space"))
    )
    return external_spec(name, interface, bool(spaces.get("action_masks", False))), interface


def sized(options: RunOptions) -> RunOptions:
    """With the number of places for clients, and of environments at each: as many as the first
    client has, so that its stream takes one place. Other runs' options stay as they are."""
    if not is_external(options):
        return options
    told = options.env_options.get(_ENVIRONMENTS, 1)
    per_place = options.envs_per_actor or (told if isinstance(told, int) else 1)
    num_places = options.num_actors or max(1, DEFAULT_ENVIRONMENTS // per_place)
    return replace(options, num_actors=num_places, envs_per_actor=per_place)


class ClientWatch:
    """Says when clients come and go, and from time to time that none is there."""

    def __init__(
        self, environment: EnvironmentFactory, note: Callable[[EventSort, str], None]
    ) -> None:
        self._listen = external_address(environment.name).listen if environment.is_external else ""
        self._note, self._before, self._next_reminder = note, -1, 0.0

    def look(self, snapshots: Mapping[str, NodeSnapshot]) -> None:
        """Nothing to see where actors step the environments."""
        if not self._listen:
            return
        now = sum(int(each.counters.get(CONNECTED, 0)) for each in snapshots.values())
        changed, self._before = now != self._before, now
        seconds = time.monotonic()
        if now and changed:
            self._note("clients", f"{now} environments of clients at {self._listen}")
        if not now and (changed or seconds >= self._next_reminder):
            self._next_reminder = seconds + _REMIND_SECONDS
            self._note("clients", f"no client is there: waiting at {self._listen}")
