# SPDX-License-Identifier: Apache-2.0
"""SEED's server for simulators elsewhere: they drive the loop, and there are no actors.

What an actor does beside stepping is done here: rewards are clipped, episodes and env steps
counted. A client holds places while it is there; each is one group of environments. When it goes,
in whatever way, its unfinished trajectory ends with the last observation that came of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from veldt.context import NodeContext
from veldt.environments.external_spaces import ExternalEndpoint
from veldt.ports import ExternalRow, ExternalServer, ReceivedRow
from veldt.roles.actor import Actor
from veldt.roles.inference.stream import StreamInference
from veldt.topology import Stream, Topology
from veldt.types import DISCOUNTED_RETURN

CONNECTED = "external.environments"
"""Gauge: environments of clients that are there now."""


class _Episodes:
    """What the environments of all places have collected in their present episodes."""

    def __init__(self, num_places: int, width: int) -> None:
        self._returns = np.zeros((num_places, width))
        self._lengths = np.zeros((num_places, width), np.int64)
        self._discounted = np.zeros((num_places, width), np.float32)

    def begin_anew(self, place: int) -> int:
        """Forget what goes on at a place; so many episodes will have no end."""
        unfinished = int((self._lengths[place] > 0).sum())
        for memory in (self._returns, self._lengths, self._discounted):
            memory[place] = 0
        return unfinished

    def add(self, place: int, reward: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns and lengths of the episodes that ended with this step."""
        self._returns[place] += reward
        self._lengths[place] += 1
        found = self._returns[place, ended], self._lengths[place, ended]
        self._returns[place, ended] = 0
        self._lengths[place, ended] = 0
        return found

    def discounted(
        self, place: int, reward: np.ndarray, ended: np.ndarray, gamma: float
    ) -> np.ndarray:
        """The running discounted return of each environment after this step."""
        running = self._discounted[place]
        running *= gamma
        running += reward
        found = running.copy()
        running[ended] = 0.0
        return found


@dataclass(eq=False)
class ExternalInference(StreamInference):
    """Answers clients that come and go. `rule.most` is the number of places; a forward pass begins
    when half of those that are held have asked. `gamma` as in Actor."""

    stream: ExternalServer
    gamma: float = 0.99
    reward_clip: float | None = None
    scales_rewards: bool = False
    """Whether trajectories have discounted returns, for the learner's reward scale."""

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._width = self.policy.part(0).stop
        self._episodes = _Episodes(self.rule.most, self._width)
        self._held: set[int] = set()
        telemetry = context.telemetry
        self._env_steps = telemetry.counter("env_steps")
        self._aborted_episodes = telemetry.counter("aborted_episodes")
        self._connected = telemetry.gauge(CONNECTED)
        self._hold()

    def _hold(self) -> None:
        """Ask for half of those who are there, not of those who could be."""
        self._open.rule = replace(self.rule, enough=max(1, len(self._held) // 2))
        self._connected.set(len(self._held) * self._width)

    def _receive(self, row: ReceivedRow) -> None:
        came, place = cast(ExternalRow, row), row.client
        if came.left:
            self._leave(place)
            return
        if place not in self._held:
            self._held.add(place)
            self._hold()
        self._read_step(place, row)
        if not came.leaves:
            super()._receive(row)
        elif not self._assembler.is_new_connection(place, row):
            self._assembler.receive(place, row)
            self._assembler.end(place, row)

    def _leave(self, place: int) -> None:
        self._forget_questions(place)
        self._assembler.end(place)
        self._aborted_episodes.add(self._episodes.begin_anew(place))
        self._held.discard(place)
        self._hold()

    def _read_step(self, place: int, row: ReceivedRow) -> None:
        """Count a step, and make of its reward what is learned from."""
        arrays = row.arrays
        ended = arrays["terminated"] | arrays["truncated"]
        if not self._assembler.is_new_connection(place, row):
            self._env_steps.add(self._width)
            returns, lengths = self._episodes.add(place, arrays["reward"], ended)
            if returns.size:
                self._telemetry.episode(returns, lengths)
        if self.reward_clip is not None:
            arrays["reward"] = arrays["reward"].clip(-self.reward_clip, self.reward_clip)
        if self.scales_rewards:
            arrays[DISCOUNTED_RETURN] = self._episodes.discounted(
                place, arrays["reward"], ended, self.gamma
            )


def without_actors(
    topology: Topology, endpoint: ExternalEndpoint, reward_clip: float | None
) -> None:
    """Simulators elsewhere take the place of the actors of `topology`: they connect to `endpoint`,
    and its server does what actors did beside stepping."""
    gammas = {node.role.gamma for node in topology.nodes if isinstance(node.role, Actor)}
    topology.nodes = [node for node in topology.nodes if not isinstance(node.role, Actor)]
    [stream], [gamma] = topology.streams, gammas
    stream = Stream(replace(stream.spec, external=endpoint))
    topology.streams = [stream]
    for node in topology.nodes:
        role = node.role
        if isinstance(role, StreamInference):
            node.role = ExternalInference(
                cast(ExternalServer, stream.server),
                role.policy,
                role.sink,
                role.rule,
                role.answer,
                gamma=gamma,
                reward_clip=reward_clip,
                scales_rewards=DISCOUNTED_RETURN in stream.spec.request,
            )
