# SPDX-License-Identifier: Apache-2.0
"""Simulators in other processes that connect to a run: "external:HOST:PORT?spaces=FILE"."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from veldt.environments.factory import Interface
from veldt.environments.lookup import EXTERNAL_PREFIX
from veldt.environments.spaces import action_spec, leaf_readers
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, EnvironmentSpec

_REMEDY = "write external:HOST:PORT, such as external:127.0.0.1:5000, optionally with ?spaces=FILE"
MOST_PORT = 65_535


@dataclass(frozen=True)
class ExternalAddress:
    """Where a run listens, and an optional file that describes the spaces."""

    listen: str
    spaces_file: str | None = None


@dataclass(frozen=True)
class Door:
    """Where simulators connect to a stream of a topology, and what their environments are like.
    They are no nodes of the run."""

    address: str
    interface: Interface
    takes_masks: bool


def external_address(name: str) -> ExternalAddress:
    """Parse the name of an external environment."""
    listen, _, setting = name.removeprefix(EXTERNAL_PREFIX).partition("?")
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        raise ConfigurationError(f"'{name}' names no host and port; {_REMEDY}")
    key, _, file = setting.partition("=")
    if setting and (key != "spaces" or not file):
        raise ConfigurationError(f"'{setting}' is not understood in '{name}'; {_REMEDY}")
    return ExternalAddress(listen, file or None)


def external_interface(observation: gymnasium.Space, action: gymnasium.Space) -> Interface:
    """The interface of these spaces; a top-level entry "action_mask" is a mask."""
    has_mask = isinstance(observation, gymnasium.spaces.Dict) and ACTION_MASK in observation.spaces
    return Interface(observation, action, has_mask and action_spec(action).kind != "box")


def external_spec(name: str, interface: Interface, takes_masks: bool) -> EnvironmentSpec:
    """The spec of declared spaces. A client resets within the step."""
    action = action_spec(interface.action_space)
    if takes_masks and action.kind == "box":
        raise ConfigurationError("Box actions have no mask; leave action_masks out")
    readers = leaf_readers(interface.observation_space, interface.mask_in_observation)
    return EnvironmentSpec(
        name,
        tuple(reader.leaf for reader in readers),
        action,
        sum(action.sizes) if takes_masks or interface.mask_in_observation else 0,
        same_step_reset=True,
    )
