# SPDX-License-Identifier: Apache-2.0
"""Streams of external simulators: what they send, which places they hold, what they wait for.

Messages that do not fit the spaces are refused with what was expected.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import gymnasium
import numpy as np
from google.protobuf.message import DecodeError

from veldt.environments import Interface
from veldt.environments.observations import Entry, ObservationReader
from veldt.environments.spaces import (
    action_offset,
    action_spec,
    bad_rows,
    described,
    external_interface,
    external_spec,
    space_from,
)
from veldt.errors import ConfigurationError
from veldt.ports import ReceivedRow
from veldt.types import ACTION_MASK
from veldt.wire import policy_pb2 as pb
from veldt.wire.protocol import Refused, Servicer, Session
from veldt.wire.security import Security
from veldt.wire.transport import RpcServer

# Clients have the same numbers: client/veldt_client/policy_client.py.
SERVICE, METHOD = "veldt.Policy", "Act"
PROTOCOL = 1
TERMINATED, TRUNCATED = 1, 2
_DTYPES = (
    "bool",
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float32", "float64"),
)
_ENVELOPE_BYTES = 4096  # bound of the tags, lengths and numbers around the arrays
_HELLO_BYTES = 1 << 20  # spaces with bounds for every number
_UNDECLARED_STREAMS = 16
_POLL_SECONDS = 0.02
Arrays = dict[str, np.ndarray]


class ExternalFormat:
    """The messages of a stream, for environments of these spaces.

    With `learns`, rewards, ends and final observations are read too."""

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
        """The dtype of the actions that environments receive."""
        return np.dtype(self._interface.action_space.dtype or np.int64)

    def max_request_bytes(self, environments: int) -> int:
        observation = sum(prod(entry.shape) * _dtype(entry).itemsize for entry in self.entries)
        row = 2 * observation + self.mask_size + 8
        return max(_HELLO_BYTES, row * environments + _ENVELOPE_BYTES)

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
        """Refuse a client that declares other spaces; those it leaves out are not compared."""
        found = declared_interface(hello, self._interface)
        expected, given = (
            ", ".join(map(_text, entries))
            for entries in (self.entries, ObservationReader(found).entries)
        )
        if given != expected:
            raise Refused("other_spaces", f"observations are {expected} here, yours are {given}")
        if action_spec(found.action_space) != self.action:
            raise Refused(
                "other_spaces",
                f"actions are {self._interface.action_space} here, yours are {found.action_space}",
            )

    def read(self, step: pb.Step, width: int, is_first: bool) -> Arrays:
        """The arrays of a step of `width` environments.

        Rewards and ends in the first step of a stream are ignored: they follow from actions of an
        earlier stream."""
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
        """One array for each entry, finite in all rows, or where `only` is set."""
        if len(data) != len(self.entries):
            names = ", ".join(map(_text, self.entries))
            raise Refused(
                "malformed", f"{len(data)} arrays of the {what} came, expected were {names}"
            )
        arrays = []
        for entry, content in zip(self.entries, data, strict=True):
            name = f"{what} '{entry.name}'"
            array = _array(content, _dtype(entry), (width, *entry.shape), name)
            array = array.astype(_dtype(entry)) if only is not None else array
            bad = bad_rows(array)
            if bad is not None and (only is None or (bad & only).any()):
                raise Refused("not_finite", f"the {name} is not finite")
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
        mask = _array(data, np.dtype(np.uint8), (width, self.mask_size), "action masks")
        try:
            found = self._reader.mask(self.action, None, mask, width)
        except ConfigurationError as error:
            raise Refused("malformed", str(error)) from error
        assert found is not None
        return found

    def encode_actions(self, actions: np.ndarray) -> bytes:
        """Actions as the environments receive them; a learner's start at zero."""
        if self.learns and self._offset is not None:
            actions = actions + self._offset
        dtype = self.action_dtype.newbyteorder("<")
        answer = pb.Actions(action=actions.astype(dtype, copy=False).tobytes())
        return pb.Reply(actions=answer).SerializeToString()


def declared_interface(hello: pb.Hello, known: Interface | None = None) -> Interface:
    """The spaces that a client declares; those it leaves out are as `known`."""
    if hello.protocol != PROTOCOL:
        raise Refused("malformed", f"protocol {hello.protocol} came, this server speaks {PROTOCOL}")
    if hello.environments < 1:
        raise Refused("malformed", "Hello.environments is 0, expected was 1 or more")
    if known is None and not (hello.observation_space and hello.action_space):
        raise Refused(
            "other_spaces",
            "Hello.observation_space and Hello.action_space are needed: this run takes them from"
            " its first client",
        )
    try:
        defaults = (known.observation_space, known.action_space) if known else (None, None)
        observation = _declared(hello.observation_space, defaults[0])
        action = _declared(hello.action_space, defaults[1])
        interface = external_interface(observation, action)
        external_spec("of a client", interface, hello.action_masks)  # refuses what cannot be read
        return interface
    except (ValueError, RecursionError) as error:
        raise Refused("other_spaces", f"the declared spaces are invalid: {error}") from error


def _declared(text: str, known: gymnasium.Space | None) -> gymnasium.Space:
    if known is None:
        return space_from(json.loads(text))
    if not text:
        return known
    given, expected = json.loads(text), described(known)
    # Text is compared first: a short one may describe a space that takes gigabytes to build.
    if _outline(given) != _outline(expected):
        detail = f"{expected!s:.200} is expected here, yours is {given!s:.200}"
        raise Refused("other_spaces", detail)
    return space_from(given)


def _outline(space: Any) -> Any:
    """What a described space has in common with those that differ only in bounds."""
    match space:
        case {"spaces": dict(entries)}:
            return {name: _outline(entry) for name, entry in entries.items()}
        case {"spaces": list(entries)}:
            return [_outline(entry) for entry in entries]
        case dict():
            return [space.get(key) for key in ("type", "shape", "dtype", "n", "nvec")]
    return space


def _dtype(entry: Entry) -> np.dtype:
    """The dtype of an entry in messages."""
    return np.dtype(entry.dtype if entry.dtype in _DTYPES else "float32")


def _text(entry: Entry) -> str:
    return f"{entry.name} {_dtype(entry).name} {entry.shape}"


def _parse(message: bytes, most_bytes: int) -> pb.Request:
    """A message of a client."""
    if len(message) > most_bytes:
        raise Refused("oversized", f"{len(message):,} bytes, {most_bytes:,} allowed")
    try:
        parsed = pb.Request.FromString(message)
    except DecodeError as error:
        raise Refused("malformed", "the bytes are no veldt.Request") from error
    if parsed.WhichOneof("kind") is None:
        raise Refused("malformed", "the message is empty")
    return parsed


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
    if max(ended) > TRUNCATED:
        raise Refused(
            "malformed", "`ended` is 0 (the episode continues), 1 (terminated) or 2 (truncated)"
        )
    return _array(ended, np.dtype(np.uint8), (width,), "ends")


def _array(data: bytes, dtype: np.dtype, shape: tuple[int, ...], what: str) -> np.ndarray:
    """A view of `data`, whose first axis is the environments."""
    nbytes = prod(shape) * dtype.itemsize
    if len(data) != nbytes:
        raise Refused(
            "malformed",
            f"{len(data):,} bytes of the {what} came, expected were {nbytes:,}:"
            f" {dtype.name} {shape}, of which {shape[0]} environments",
        )
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)


class ExternalSession(Session):
    """One stream, which may send a Step only after the last one was answered."""

    _servicer: ExternalServicer

    def __init__(
        self, servicer: ExternalServicer, number: int, send: Callable[[bytes], None]
    ) -> None:
        super().__init__(servicer, number, send)
        self.width = 0
        self.places: list[int] = []
        self._is_first = True
        self._unanswered = 0
        self._has_left = self._has_ended = False

    def receive(self, message: bytes) -> None:
        request = _parse(message, self._servicer.max_request_bytes)
        if request.WhichOneof("kind") == "hello":
            self._open(request.hello)
        else:
            self._take(request.step)

    def _open(self, hello: pb.Hello) -> None:
        if self.width:
            raise Refused("malformed", "a stream says Hello once")
        self._servicer.format.check_spaces(hello)
        self.places = self._servicer.admit(hello.environments)
        self.width = hello.environments
        self._actions = np.zeros(
            (self.width, *self._servicer.format.action.shape), self._servicer.reply_dtype
        )
        self._send(self._servicer.format.welcome())

    def _take(self, step: pb.Step) -> None:
        if not self.width:
            raise Refused("malformed", "a stream begins with Hello")
        if self._unanswered or self._has_left:
            raise Refused("out_of_turn", "a Step came before the last one was answered")
        arrays = self._servicer.format.read(step, self.width, self._is_first)
        self._is_first, self.has_begun = False, True
        self._has_left = step.leaves
        self._unanswered = 0 if step.leaves else len(self.places)
        for place, part in self._parts():
            rows = {name: array[part] for name, array in arrays.items()}
            answer = partial(self._answer, part)
            self._servicer.put(ReceivedRow(place, 0, 0, self.number, rows, answer, step.leaves))

    def _parts(self) -> list[tuple[int, slice]]:
        width = self.width // max(1, len(self.places))
        return [(place, slice(i * width, (i + 1) * width)) for i, place in enumerate(self.places)]

    def _answer(self, part: slice, data: bytes) -> None:
        if self._has_ended:
            return
        actions = self._actions[part]
        actions[:] = np.frombuffer(data, actions.dtype, actions.size).reshape(actions.shape)
        self._unanswered -= 1
        if not self._unanswered:
            self._send(self._servicer.format.encode_actions(self._actions))

    def close(self) -> None:
        """The stream has ended; `take` frees its places when it reads these rows."""
        self._has_ended = True
        for place, part in self._parts():
            answer = partial(self._answer, part)
            self._servicer.put(ReceivedRow(place, 0, 0, self.number, {}, answer, left=True))


class ExternalServicer(Servicer):
    """All streams of a server, which hold `num_places` places among them.

    A stream holds one place for each `group_width` of its environments; None: one for all."""

    def __init__(
        self,
        format: ExternalFormat,
        num_places: int,
        group_width: int | None = None,
        max_environments: int | None = None,
    ) -> None:
        self._max_environments = max_environments or num_places * (group_width or 1)
        # A client may open a new stream before the old one is known to be dead.
        streams, most_bytes = 2 * num_places + 8, format.max_request_bytes(self._max_environments)
        super().__init__(ExternalSession, (SERVICE, METHOD), most_bytes, streams)
        self.format, self._group_width = format, group_width
        self._free = list(reversed(range(num_places)))
        self._num_places = num_places

    @property
    def reply_dtype(self) -> np.dtype:
        """The dtype of the actions in an answer: a learner's, or the environment's."""
        if self.format.learns:
            return np.dtype(self.format.action.field_dtype)
        return self.format.action_dtype

    def admit(self, environments: int) -> list[int]:
        """The places of a stream of `environments`, or Refused."""
        width = self._group_width or environments
        if environments % width:
            raise Refused(
                "malformed",
                f"{environments} environments came on one stream, expected was a multiple of"
                f" {width}; start the run with --envs-per-actor 1 to take any number",
            )
        if environments > self._max_environments:
            raise Refused(
                "malformed",
                f"{environments} environments came on one stream, at most"
                f" {self._max_environments} are taken; use several streams",
            )
        wanted = environments // width
        if wanted > len(self._free):
            raise Refused(
                "no_place",
                f"{len(self._free)} of {self._num_places} places are free, {wanted} are needed;"
                " wait until another client leaves, or start the server with more",
            )
        return [self._free.pop() for _ in range(wanted)]

    def take(self) -> ReceivedRow | None:
        """The next row, or None. Frees the place of a client that has left."""
        row = super().take()
        if row is not None and row.left:
            self._free.append(row.client)
        return row


class _FirstHello(Session):
    """Reads the Hello of a stream, then ends it; the client will connect again."""

    _servicer: _Undeclared

    def receive(self, message: bytes) -> None:
        request = _parse(message, _HELLO_BYTES)
        if request.WhichOneof("kind") != "hello":
            raise Refused("malformed", "a stream begins with Hello")
        declared_interface(request.hello)
        self._servicer.hello = request.hello
        raise Refused("no_place", "the run begins with these spaces; connect again")


class _Undeclared(Servicer):
    hello: pb.Hello | None = None


def first_hello(address: str, security: Security, is_wanted: Callable[[], bool]) -> pb.Hello | None:
    """Listen until a client has declared its spaces; None once `is_wanted` returns False."""
    servicer = _Undeclared(_FirstHello, (SERVICE, METHOD), _HELLO_BYTES, _UNDECLARED_STREAMS)
    server = RpcServer(servicer, address, security)
    try:
        while servicer.hello is None and is_wanted():
            server.take()
            time.sleep(_POLL_SECONDS)
        return servicer.hello
    finally:
        server.close()
