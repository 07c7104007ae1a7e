# SPDX-License-Identifier: Apache-2.0
"""What simulators elsewhere send, as the arrays that policies read. What does not fit the spaces is
refused with what was expected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np
from google.protobuf.message import DecodeError

from veldt.environments import Interface
from veldt.environments.external_spaces import described, external_interface, space_from
from veldt.environments.spaces import action_offset, action_spec, bad_rows
from veldt.errors import ConfigurationError
from veldt.policy.reading import Entry, ObservationReader
from veldt.types import ACTION_MASK
from veldt.wire import policy_pb2 as pb
from veldt.wire.protocol import Refused

# Clients have the same numbers: client/veldt_client/policy_client.py.
SERVICE, METHOD = "veldt.Policy", "Act"
PROTOCOL = 1
TERMINATED, TRUNCATED = 1, 2
_DTYPES = (
    "bool",
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float32", "float64"),
)
_ENVELOPE_BYTES = 4096  # tags, lengths and numbers around the arrays, generously
_HELLO_BYTES = 1 << 20  # spaces with bounds for every number
Arrays = dict[str, np.ndarray]


class ExternalFormat:
    """The messages of a stream, for an environment of these spaces. `learns`: what follows actions
    is read as well."""

    def __init__(
        self,
        interface: Interface,
        *,
        learns: bool,
        reads_reward: bool = False,
        takes_masks: bool = True,
    ) -> None:
        self.learns, self._interface, self._reads_reward = learns, interface, reads_reward
        self._reader = ObservationReader(interface)
        self.entries: Sequence[Entry] = self._reader.entries
        self.action = action_spec(interface.action_space)
        self._offset = action_offset(interface.action_space)
        self.mask_size = sum(self.action.sizes) if takes_masks else 0

    @property
    def action_dtype(self) -> np.dtype:
        """Of what environments receive."""
        return np.dtype(self._interface.action_space.dtype or np.int64)

    @cached_property
    def row_bytes(self) -> int:
        """What one environment's part of a Step takes at most."""
        observation = sum(prod(entry.shape) * _dtype(entry).itemsize for entry in self.entries)
        return 2 * observation + self.mask_size + 8

    def max_request_bytes(self, environments: int) -> int:
        return max(_HELLO_BYTES, self.row_bytes * environments + _ENVELOPE_BYTES)

    def welcome(self) -> bytes:
        interface = self._interface
        reply = pb.Welcome(
            observation=[
                pb.Entry(
                    name=entry.name,
                    path=map(str, entry.path),
                    dtype=_dtype(entry).name,
                    shape=entry.shape,
                )
                for entry in self.entries
            ],
            action=pb.Entry(name="action", dtype=self.action_dtype.name, shape=self.action.shape),
            action_mask_size=self.mask_size,
            learns=self.learns,
            reads_reward=self._reads_reward,
            observation_space=json.dumps(described(interface.observation_space)),
            action_space=json.dumps(described(interface.action_space)),
        )
        return pb.Reply(welcome=reply).SerializeToString()

    def check_spaces(self, hello: pb.Hello) -> None:
        """Refuse a client whose environment is another one, where it says so."""
        found = declared_interface(hello, self._interface)
        theirs = [_words(entry) for entry in ObservationReader(found).entries]
        ours = [_words(entry) for entry in self.entries]
        if theirs != ours:
            expected, given = ", ".join(ours), ", ".join(theirs)
            raise Refused("other_spaces", f"observations are {expected} here, yours are {given}")
        if action_spec(found.action_space) != self.action:
            raise Refused(
                "other_spaces",
                f"actions are {self._interface.action_space} here, yours are {found.action_space}",
            )

    def read(self, step: pb.Step, width: int, is_first: bool) -> Arrays:
        """The arrays of a step of `width` environments. What the first one of a stream says about
        earlier actions is not read: nobody here gave them."""
        given = self._given(step.observation, width, "observation")
        arrays = self._rows(given)
        if step.action_mask or (self.mask_size and self.learns):
            arrays[ACTION_MASK] = self._mask(step.action_mask, width)
        ended = _ends(step.ended, width) if not is_first else np.zeros(width, np.uint8)
        reward = _rewards(step.reward, width) if not is_first else np.zeros(width, np.float32)
        arrays["first"] = np.ones(width, bool) if is_first else ended > 0
        arrays["reward"] = reward
        if self.learns:
            arrays["terminated"], arrays["truncated"] = ended == TERMINATED, ended == TRUNCATED
            arrays["ignored"] = np.zeros(width, bool)
            arrays |= self._finals(step, given, arrays["truncated"])
        return arrays

    def _finals(self, step: pb.Step, given: list[np.ndarray], truncated: np.ndarray) -> Arrays:
        width = len(truncated)
        finals = given
        if truncated.any():
            finals = self._given(step.final_observation, width, "final observation", truncated)
            for final, observation in zip(finals, given, strict=True):
                final[~truncated] = observation[~truncated]
        return {f"final_{name}": rows for name, rows in self._rows(finals).items()}

    def _given(
        self, data: Sequence[bytes], width: int, what: str, only: np.ndarray | None = None
    ) -> list[np.ndarray]:
        if len(data) != len(self.entries):
            names = ", ".join(map(_words, self.entries))
            raise Refused(
                "malformed", f"{len(data)} arrays of the {what} came, expected were {names}"
            )
        arrays = []
        for entry, content in zip(self.entries, data, strict=True):
            dtype, shape = _dtype(entry), (width, *entry.shape)
            if len(content) != prod(shape) * dtype.itemsize:
                raise Refused(
                    "malformed",
                    f"{len(content):,} bytes came of the {what} '{entry.name}', expected were"
                    f" {prod(shape) * dtype.itemsize:,}: {dtype.name} {shape}, of which"
                    f" {width} environments",
                )
            array = np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape)
            array = array.astype(dtype) if only is not None else array
            bad = bad_rows(array)
            if bad is not None and (only is None or (bad & only).any()):
                raise Refused("not_finite", f"the {what} '{entry.name}' is not finite")
            arrays.append(array)
        return arrays

    def _rows(self, given: list[np.ndarray]) -> Arrays:
        rows: Arrays = {}
        try:
            for entry, array in zip(self.entries, given, strict=True):
                rows |= entry.rows(array)
        except ConfigurationError as error:
            raise Refused("malformed", str(error)) from error
        return rows

    def _mask(self, data: bytes, width: int) -> np.ndarray:
        if not data:
            return np.ones((width, self.mask_size), bool)
        if not self.mask_size:
            raise Refused("malformed", "an action mask came, but none is read here; leave it out")
        if len(data) != width * self.mask_size:
            raise Refused(
                "malformed",
                f"{len(data):,} bytes of action masks came, expected were {width} x"
                f" {self.mask_size}",
            )
        mask = np.frombuffer(data, np.uint8).reshape(width, self.mask_size)
        try:
            found = self._reader.mask(self.action, None, mask, width)
        except ConfigurationError as error:
            raise Refused("malformed", str(error)) from error
        assert found is not None
        return found

    def encode_actions(self, actions: np.ndarray) -> bytes:
        """Actions as the environments receive them; those of a learner count from zero."""
        if self.learns and self._offset is not None:
            actions = actions + self._offset
        dtype = self.action_dtype.newbyteorder("<")
        answer = pb.Actions(action=actions.astype(dtype, copy=False).tobytes())
        return pb.Reply(actions=answer).SerializeToString()


def parsed(message: bytes) -> pb.Request:
    """One message of a client."""
    try:
        request = pb.Request.FromString(message)
    except DecodeError as error:
        raise Refused("malformed", "the bytes are no veldt.Request (policy.proto)") from error
    if request.WhichOneof("kind") is None:
        raise Refused("malformed", "the message is empty; a Hello or a Step was expected")
    return request


def check_hello(hello: pb.Hello) -> None:
    if hello.protocol != PROTOCOL:
        raise Refused("malformed", f"protocol {hello.protocol} came, this server speaks {PROTOCOL}")
    if hello.environments < 1:
        raise Refused("malformed", "Hello.environments is 0, expected was 1 or more")


def declared_interface(hello: pb.Hello, known: Interface | None = None) -> Interface:
    """The spaces that a client declares; those it leaves out are as `known`."""
    if known is None and not (hello.observation_space and hello.action_space):
        raise Refused(
            "other_spaces",
            "Hello.observation_space and Hello.action_space are needed: this run takes them from"
            " its first client",
        )
    try:
        spaces = [
            space_from(json.loads(text)) if text else None
            for text in (hello.observation_space, hello.action_space)
        ]
        observation = spaces[0] or known.observation_space  # type: ignore[union-attr]
        action = spaces[1] or known.action_space  # type: ignore[union-attr]
        return external_interface(observation, action)
    except (ValueError, RecursionError) as error:
        raise Refused("other_spaces", f"the declared spaces make no sense: {error}") from error


def _dtype(entry: Entry) -> np.dtype:
    """Of an entry on the wire."""
    return np.dtype(entry.dtype if entry.dtype in _DTYPES else "float32")


def _words(entry: Entry) -> str:
    return f"{entry.name} {_dtype(entry).name} {entry.shape}"


def _rewards(rewards: Sequence[float], width: int) -> np.ndarray:
    if not rewards:
        return np.zeros(width, np.float32)
    if len(rewards) != width:
        raise Refused("malformed", f"{len(rewards)} rewards came, expected were {width}")
    found = np.array(rewards, np.float32)
    if not np.isfinite(found).all():
        raise Refused("not_finite", "a reward is not finite")
    return found


def _ends(ended: bytes, width: int) -> np.ndarray:
    if not ended:
        return np.zeros(width, np.uint8)
    if len(ended) != width or max(ended) > TRUNCATED:
        raise Refused(
            "malformed",
            f"{len(ended)} bytes of `ended` came, expected were {width} of 0 (goes on),"
            " 1 (terminated) or 2 (truncated)",
        )
    return np.frombuffer(ended, np.uint8)
