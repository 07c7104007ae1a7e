# SPDX-License-Identifier: Apache-2.0
"""The client of a policy server; docs/serving.md describes the protocol."""

from __future__ import annotations

import json
import os
import queue
import random
import time
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from veldt_client import policy_pb2 as pb
from veldt_client.spaces import described

# The server's side of these is in veldt/wire/external.py and veldt/wire/security.py.
SERVICE, METHOD = "veldt.Policy", "Act"
PROTOCOL = 1
TOKEN_HEADER = "veldt-token"
TLS_NAME = "veldt"  # in the server's certificate; server addresses change, so they are not in it
TERMINATED, TRUNCATED = 1, 2

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Status codes for which a retry is useless."""
_TOO_MANY = "Concurrent RPC limit"
"""gRPC's message for a stream that has to wait; other exhausted resources are final."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Refused(ValueError):  # noqa: N818
    """The server rejected a message; the text says what it expected."""


class PolicyClient:
    """Asks a policy server for actions.

    >>> with PolicyClient("127.0.0.1:5000") as policy:  # doctest: +SKIP
    ...     action = policy.act(observation)

    The first `act` opens the stream. A broken stream is opened again and the unanswered step is
    sent again; the server then treats it as the first step of a new stream.

    Args:
        address: "HOST:PORT" of the server.
        environments: Number of environments stepped together; None: one, without a batch axis.
        observation_space: A Gymnasium space or its description. A run started without an
            environment takes the spaces of its first client.
        action_space: Likewise.
        action_masks: Whether every step comes with a mask of allowed actions.
        give_up_seconds: Seconds without a server after which ConnectionError is raised.
        token: The server's token; default $VELDT_TOKEN.
        certificate: File with the server's certificate; default $VELDT_CERTIFICATE.
    """

    def __init__(
        self,
        address: str,
        environments: int | None = None,
        observation_space: Any = None,
        action_space: Any = None,
        action_masks: bool = False,
        give_up_seconds: float = 60.0,
        token: str | None = None,
        certificate: str | None = None,
    ) -> None:
        self._address, self._is_one = address, environments is None
        self._width = 1 if environments is None else environments
        self._hello = pb.Hello(
            protocol=PROTOCOL,
            environments=self._width,
            observation_space=_text(observation_space),
            action_space=_text(action_space),
            action_masks=action_masks,
        )
        self._give_up_seconds = give_up_seconds
        self._token = token or os.environ.get("VELDT_TOKEN", "")
        self._certificate = certificate or os.environ.get("VELDT_CERTIFICATE", "")
        self._channel: grpc.Channel | None = None
        self._outgoing: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        self._replies: Any = None
        self._welcome: pb.Welcome | None = None
        self.connections = 0
        """Streams opened so far."""

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def welcome(self) -> pb.Welcome:
        """The arrays the server expects and returns; connects if needed."""
        if self._welcome is None:
            self._persist(lambda: None)
        assert self._welcome is not None
        return self._welcome

    def act(
        self,
        observation: Any,
        reward: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        final_observation: Any = None,
        mask: Any = None,
    ) -> Any:
        """Return the next action; with `environments`, an array with one action each.

        Args:
            observation: The current observation; where an episode ended, the first one of the next.
            reward: Reward of the last action.
            terminated: Whether the last action ended the episode.
            truncated: Whether the episode was cut off after the last action.
            final_observation: Last observation of a truncated episode; None for other environments.
            mask: Allowed actions.
        """
        step = self._step(observation, reward, terminated, truncated, final_observation, mask)
        actions = self._persist(lambda: self._asked(step))
        entry = self.welcome.action
        dtype = np.dtype(entry.dtype).newbyteorder("<")
        found = np.frombuffer(actions, dtype).reshape(self._width, *entry.shape)
        return found[0] if self._is_one else found

    def leave(
        self, observation: Any, reward: Any = None, terminated: Any = None, truncated: Any = None
    ) -> None:
        """Send the result of the last action and close; no further action is returned."""
        step = self._step(observation, reward, terminated, truncated, observation, None)
        step.leaves = True
        if self._replies is not None:
            self._outgoing.put(pb.Request(step=step))
            self._outgoing.put(None)
            try:
                list(self._replies)
            except grpc.RpcError as error:
                _cause(error)
        self.close()

    def close(self) -> None:
        """End the stream; the server still learns from the unfinished episode."""
        self._outgoing.put(None)
        if self._channel is not None:
            self._channel.close()
        self._channel, self._replies, self._welcome = None, None, None

    def _step(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        final: Any,
        mask: Any,
    ) -> pb.Step:
        if self._is_one:
            observation, reward, mask = [observation], _one(reward), _one(mask)
            terminated, truncated, final = _one(terminated), _one(truncated), _one(final)
        elif not self._has_tuples():
            observation, final = _listed(observation), _listed(final)
        if mask is None and self.welcome.action_mask_size:
            mask = _mask_in(observation)
        ended = self._ends(terminated, truncated)
        step = pb.Step(observation=self._arrays(observation), ended=ended)
        if reward is not None:
            step.reward.extend(map(float, reward))
        if mask is not None:
            size = (self._width, self.welcome.action_mask_size)
            step.action_mask = _packed(mask, "bool", size, "action mask")
        if TRUNCATED in ended and self.welcome.learns:
            step.final_observation.extend(self._arrays(_filled(final, observation, ended)))
        return step

    def _has_tuples(self) -> bool:
        """Whether one observation is a tuple, so that a tuple is not a list of observations."""
        return all(entry.path and entry.path[0].isdecimal() for entry in self.welcome.observation)

    def _ends(self, terminated: Any, truncated: Any) -> bytes:
        ends = bytearray(self._width)
        for flags, code in ((truncated, TRUNCATED), (terminated, TERMINATED)):
            for row, flag in enumerate(() if flags is None else flags):
                if flag:
                    ends[row] = code
        return bytes(ends) if any(ends) else b""

    def _arrays(self, observations: Any) -> list[bytes]:
        """The observation's arrays, [environments, ...], in the server's order."""
        return [
            _packed(
                _at(observations, entry.path), entry.dtype, (self._width, *entry.shape), entry.name
            )
            for entry in self.welcome.observation
        ]

    def _asked(self, step: pb.Step) -> bytes:
        self._outgoing.put(pb.Request(step=step))
        return bytes(next(self._replies).actions.action)

    def _persist(self, ask: Any) -> Any:
        """Call `ask`, reopening the stream after each failure until the deadline."""
        pause, deadline = _FIRST_PAUSE_SECONDS, time.monotonic() + self._give_up_seconds
        while True:
            try:
                if self._replies is None:
                    self._connect()
                return ask()
            except (grpc.RpcError, StopIteration) as error:
                self.close()
                cause = _cause(error)
                if time.monotonic() > deadline:
                    waited = f"no answer from {self._address} for {self._give_up_seconds:g} s"
                    raise ConnectionError(f"{waited} ({cause})") from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _connect(self) -> None:
        self._outgoing = queue.SimpleQueue()
        self._channel = self._opened_channel()
        call = self._channel.stream_stream(
            f"/{SERVICE}/{METHOD}", pb.Request.SerializeToString, pb.Reply.FromString
        )
        metadata = ((TOKEN_HEADER, self._token),) if self._token else ()
        self._outgoing.put(pb.Request(hello=self._hello))
        replies = call(iter(self._outgoing.get, None), metadata=metadata)
        self._welcome = next(replies).welcome
        self._replies = replies
        self.connections += 1

    def _opened_channel(self) -> grpc.Channel:
        if not self._certificate:
            return grpc.insecure_channel(self._address, _OPTIONS)
        credentials = grpc.ssl_channel_credentials(Path(self._certificate).read_bytes())
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME)]
        return grpc.secure_channel(self._address, credentials, options)


def _cause(error: BaseException) -> str:
    """Why a stream ended; raises Refused if a retry is useless."""
    if isinstance(error, grpc.RpcError):
        code, words = error.code(), error.details() or ""
        is_too_large = code == grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_MANY not in words
        if code in _FINAL or is_too_large:
            raise Refused(words) from None
        return f"{code.name}: {words}"
    return "the server ended the stream"


def _packed(value: Any, dtype: str, shape: Sequence[int], name: str) -> bytes:
    """The bytes of an array of `shape`: little-endian, C order."""
    target = np.dtype(dtype).newbyteorder("<")
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    else:
        data = np.asarray(value, target).tobytes()
    expected = prod(shape) * target.itemsize
    if len(data) != expected:
        raise ValueError(
            f"the {name} has {len(data):,} bytes, but {tuple(shape)} numbers of {dtype} are"
            f" {expected:,}"
        )
    return data


def _text(space: Any) -> str:
    return "" if space is None else json.dumps(described(space))


def _one(value: Any) -> Any:
    return None if value is None else [value]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _mask_in(observations: Any) -> Any:
    """The entry "action_mask" of the observation, if there is one."""
    if isinstance(observations, dict):
        return observations.get("action_mask")
    if isinstance(observations, list) and observations and isinstance(observations[0], dict):
        masks = [_mask_in(each) for each in observations]
        return None if any(mask is None for mask in masks) else masks
    return None


def _at(observations: Any, path: Sequence[str]) -> Any:
    """The array at `path`, from stacked observations or a list of observations."""
    if not path:
        return observations
    if isinstance(observations, Iterable) and not isinstance(observations, dict | tuple):
        return [_at(each, path) for each in observations]
    key = path[0]
    found = observations[int(key) if isinstance(observations, tuple) else key]
    return _at(found, path[1:])


def _filled(final: Any, observations: Any, ended: bytes) -> Any:
    """Final observations; rows of environments that were not truncated repeat `observations`."""
    if final is None:
        raise ValueError(
            "truncated needs final_observation, the last observation of the truncated episode,"
            " because `observation` already belongs to the next episode"
        )
    if isinstance(final, dict | tuple) or (hasattr(final, "astype") and final.dtype != object):
        return final
    rows = list(final)
    for row, end in enumerate(ended):
        if rows[row] is None and end == TRUNCATED:
            raise ValueError(f"environment {row} was truncated and has no final_observation")
        if rows[row] is None:
            rows[row] = _row(observations, row)
    return rows


def _row(observations: Any, row: int) -> Any:
    if isinstance(observations, dict):
        return {key: _row(entry, row) for key, entry in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_row(entry, row) for entry in observations)
    return observations[row]
