# SPDX-License-Identifier: Apache-2.0
"""`veldt serve`: the policy of a run answers simulators over gRPC.

All pending requests are answered with one forward pass. Recurrent state is kept here, by stream.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from veldt.environments.lookup import MOST_PORT
from veldt.errors import ConfigurationError
from veldt.policy.trained import PolicyState, TrainedPolicy, loaded
from veldt.ports import ReceivedRow
from veldt.run.best import BEST
from veldt.run.process import output_stream
from veldt.telemetry.result import dumps
from veldt.types import ACTION_MASK
from veldt.wire.external import ExternalFormat, ExternalServicer
from veldt.wire.security import from_environment
from veldt.wire.transport import RpcServer

_MOST_STREAMS, _MOST_ENVIRONMENTS = 256, 1024
"""Clients at a time, and environments per client."""
_IDLE_MILLISECONDS = 100


class PolicyService:
    """Answers all clients of `server` with `policy`."""

    def __init__(self, policy: TrainedPolicy, address: str, deterministic: bool = True) -> None:
        self._policy, self._deterministic = policy, deterministic
        format = ExternalFormat(policy.interface, learns=False, reads_reward=policy.reads_reward)
        servicer = ExternalServicer(format, _MOST_STREAMS, max_environments=_MOST_ENVIRONMENTS)
        self._server = RpcServer(servicer, address, from_environment(address))
        self.port = self._server.port
        self._states: dict[int, PolicyState] = {}
        """By stream, if the policy is recurrent."""
        self._streams: set[int] = set()
        self.clients = self.requests = self.forward_passes = 0

    @property
    def refused(self) -> dict[str, int]:
        """Number of refused messages by reason."""
        return dict(self._server.refused)

    def fileno(self) -> int:
        """A descriptor that is readable when a request is pending."""
        return self._server.fileno()

    def step(self) -> bool:
        """Answer pending requests; False if there were none."""
        rows: list[ReceivedRow] = []
        while (row := self._server.take()) is not None:
            if row.left:
                self._states.pop(row.connection, None)
                self._streams.discard(row.connection)
                rows = [earlier for earlier in rows if earlier.connection != row.connection]
            elif not row.leaves:
                rows.append(row)
        if rows:
            self._answer(rows)
        return bool(rows)

    def _answer(self, rows: list[ReceivedRow]) -> None:
        new = {row.connection for row in rows} - self._streams
        self._streams |= new
        self.clients += len(new)
        self.requests += len(rows)
        self.forward_passes += 1
        actions = self._actions(rows)
        start = 0
        for row in rows:
            end = start + _width(row)
            row.answer(actions[start:end].tobytes())
            start = end

    def _actions(self, rows: list[ReceivedRow]) -> np.ndarray:
        policy = self._policy
        names = [entry.name for entry in policy.leaves]
        joined = {name: np.concatenate([row.arrays[name] for row in rows]) for name in names}
        if any(ACTION_MASK in row.arrays for row in rows):
            masks = [
                row.arrays.get(ACTION_MASK, np.ones((_width(row), policy.num_choices), bool))
                for row in rows
            ]
            joined[ACTION_MASK] = np.concatenate(masks)
        if not policy.has_memory:
            return policy.act_on_rows(joined, None, self._deterministic)
        states = [self._state(row) for row in rows]
        state = PolicyState.joined(states)
        reward = np.concatenate([row.arrays["reward"] for row in rows])
        actions = policy.act_on_rows(joined, state, self._deterministic, reward)
        state.divide(states)
        return actions

    def _state(self, row: ReceivedRow) -> PolicyState:
        if row.connection not in self._states:
            self._states[row.connection] = self._policy.initial_state(_width(row))
        state = self._states[row.connection]
        state.reset(row.arrays["first"])
        return state

    def close(self) -> None:
        """End all streams."""
        self._server.close()


def _width(row: ReceivedRow) -> int:
    return len(row.arrays["first"])


def serve_run(
    run_dir: Path,
    checkpoint: str | int = BEST,
    host: str = "127.0.0.1",
    port: int = 0,
    stochastic: bool = False,
    policy: int | None = None,
    trust_code: bool = False,
    json: bool = False,
    seed: int = 0,
) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code."""
    if port > MOST_PORT:
        raise ConfigurationError(f"port is {port}; use 0 to {MOST_PORT}")
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # for a few rows several threads are slower
    found = loaded(run_dir, checkpoint, policy, seed, trust_code)
    service = PolicyService(found, _address(host, port), not stochastic)
    address = _address(host, service.port)
    begin = {"event": "serving", "address": address, "host": host, "port": service.port}
    about = {"architecture": found.architecture, "env": found.env, "env_steps": found.env_steps}
    _say(f"serving {found} at {address} (Ctrl-C ends it)", {**begin, **about}, json)
    listening = select.poll()
    listening.register(service.fileno(), select.POLLIN)
    try:
        while not stopping:
            if not service.step():
                listening.poll(_IDLE_MILLISECONDS)
    finally:
        service.close()
    counts = {
        "clients": service.clients,
        "requests": service.requests,
        "forward_passes": service.forward_passes,
        "refused": service.refused,
    }
    total = f"{service.requests:,} requests of {service.clients:,} clients answered in"
    _say(f"{total} {service.forward_passes:,} forward passes", {"event": "end", **counts}, json)
    return 0


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _say(text: str, event: dict[str, object], as_json: bool) -> None:
    print(dumps(event) if as_json else text, file=output_stream(), flush=True)
