# SPDX-License-Identifier: Apache-2.0
"""A stream to a policy that is served or that learns; docs/serving.md has the protocol."""

from __future__ import annotations

import json
import os
import queue
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from veldt.client import policy_pb2 as pb
from veldt.client.arrays import packed, unpacked
from veldt.client.protocol import (
    METHOD,
    PROTOCOL,
    SERVICE,
    TERMINATED,
    TLS_NAME,
    TOKEN_HEADER,
    TRUNCATED,
)
from veldt.client.spaces import described

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers that trying again would not change."""
_TOO_MANY = "Concurrent RPC limit"
"""gRPC's words for streams that have to wait; what else is too much stays so."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Refused(ValueError):  # noqa: N818 - it reads as what happened
    """The server does not take what was sent; the text says what it expected."""


class PolicyClient:
    """Actions for one environment, or for `environments` that are stepped together.

    >>> with PolicyClient("127.0.0.1:5000") as policy:  # doctest: +SKIP
    ...     action = policy.act(observation)

    `observation_space` and `action_space`: of Gymnasium, or their descriptions; a run that was
    started without any takes them from its first client. The stream is opened by the first `act`,
    and again when it breaks: what was not answered is asked again, and the server begins anew with
    it. After `give_up_seconds` without a server, ConnectionError. `token` and `certificate` (a
    file) where the server asks for them; by default $VELDT_TOKEN and $VELDT_CERTIFICATE."""

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
        """Streams opened so far; more than one: the connection broke in between."""

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def welcome(self) -> pb.Welcome:
        """What the server said it takes and gives; connects where there is no stream yet."""
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
        """The action for an observation; with `environments`, lists of both.

        `reward` and the flags say what followed the last action. Where an episode has ended,
        `observation` is the first one of the next episode, and `final_observation` the last one of
        a truncated episode (None where there is none). `mask`: allowed actions."""
        step = self._step(observation, reward, terminated, truncated, final_observation, mask)
        actions = self._persist(lambda: self._asked(step))
        entry = self.welcome.action
        found = unpacked(actions, entry.dtype, (self._width, *entry.shape))
        return found[0] if self._is_one else found

    def leave(
        self, observation: Any, reward: Any = None, terminated: Any = None, truncated: Any = None
    ) -> None:
        """Say what followed the last action, and close: no further action is wanted."""
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
        """End the stream; what an unfinished episode was like is learned from up to here."""
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
            step.action_mask = packed(mask, "bool", size, "action mask")
        if TRUNCATED in ended and self.welcome.learns:
            step.final_observation.extend(self._arrays(_filled(final, observation, ended)))
        return step

    def _has_tuples(self) -> bool:
        """Whether an observation is a tuple itself, so that one is no list of observations."""
        return all(entry.path and entry.path[0].isdecimal() for entry in self.welcome.observation)

    def _ends(self, terminated: Any, truncated: Any) -> bytes:
        ends = bytearray(self._width)
        for flags, code in ((truncated, TRUNCATED), (terminated, TERMINATED)):
            for row, flag in enumerate(() if flags is None else flags):
                if flag:
                    ends[row] = code
        return bytes(ends) if any(ends) else b""

    def _arrays(self, observations: Any) -> list[bytes]:
        """The observation's arrays in the order of the server; [environments, ...] each."""
        return [
            packed(
                _at(observations, entry.path), entry.dtype, (self._width, *entry.shape), entry.name
            )
            for entry in self.welcome.observation
        ]

    def _asked(self, step: pb.Step) -> bytes:
        self._outgoing.put(pb.Request(step=step))
        return bytes(next(self._replies).actions.action)

    def _persist(self, ask: Any) -> Any:
        """`ask` on a stream that works, opened as often as it takes."""
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
    """Why a stream ended, where another one may help; Refused where none would."""
    if isinstance(error, grpc.RpcError):
        code, words = error.code(), error.details() or ""
        is_too_large = code == grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_MANY not in words
        if code in _FINAL or is_too_large:
            raise Refused(words) from None
        return f"{code.name}: {words}"
    return "the server ended the stream"


def _text(space: Any) -> str:
    return "" if space is None else json.dumps(described(space))


def _one(value: Any) -> Any:
    return None if value is None else [value]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _mask_in(observations: Any) -> Any:
    """The mask that is an entry of the observation, as environments for Gymnasium have it."""
    if isinstance(observations, dict):
        return observations.get("action_mask")
    if isinstance(observations, list) and observations and isinstance(observations[0], dict):
        masks = [_mask_in(each) for each in observations]
        return None if any(mask is None for mask in masks) else masks
    return None


def _at(observations: Any, path: Sequence[str]) -> Any:
    """One array of all environments: from one observation of arrays, or a list of observations."""
    if not path:
        return observations
    if isinstance(observations, Iterable) and not isinstance(observations, dict | tuple):
        return [_at(each, path) for each in observations]
    key = path[0]
    found = observations[int(key) if isinstance(observations, tuple) else key]
    return _at(found, path[1:])


def _filled(final: Any, observations: Any, ended: bytes) -> Any:
    """The last observations of truncated episodes; the others' rows hold what is there anyway."""
    if final is None:
        raise ValueError(
            "truncated needs final_observation: the last one of the episode that was cut off, since"
            " the observation is already that of the next"
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
