# SPDX-License-Identifier: Apache-2.0
"""LocalPolicy: an actor's own copy of the network, and the ways to turn outputs into actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from veldt.algorithms.colored_noise import NoiseStream
from veldt.algorithms.schedules import epsilon_ladder, linear
from veldt.context import NodeContext
from veldt.networks import (
    MASKED_LOGIT,
    DPGNetwork,
    DPGOutput,
    FlatParameters,
    Gaussian,
    Network,
    QOutput,
    SACOutput,
    TD3Output,
    TwinCriticNetwork,
    masked_q,
)
from veldt.objectives.asynchronous_q import AsynchronousQSettings
from veldt.ports import ParameterSource
from veldt.roles.gradients.shards import joined
from veldt.types import PolicyReply, Slot

State = tuple[torch.Tensor, ...]


class Selection(Protocol):
    """Turns network outputs for one group into stored action, env action and stored outputs."""

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply: ...


class SampleActions:
    """Draws from the policy's distribution and keeps its parameters: the behaviour policy mu.
    `keep_value`: also what the critic thought while acting, for PPO's value clipping.
    `noise_exponent`: color of the noise on Box actions (see colored_noise)."""

    def __init__(
        self,
        network: Network,
        context: NodeContext,
        keep_value: bool = False,
        noise_exponent: float = 0.0,
    ) -> None:
        assert network.distribution is not None
        self._distribution, self._keep_value = network.distribution, keep_value
        self._random = context.random("actions")
        self._noise = NoiseStream(noise_exponent, self._random) if noise_exponent else None

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply:
        logits = outputs.logits.cpu().numpy()
        if self._noise is not None and isinstance(self._distribution, Gaussian):
            noise = self._noise.next((len(logits), self._distribution.d))
            action = self._distribution.draw(logits, noise)
        else:
            action = self._distribution.sample(logits, self._random)
        env_action = self._distribution.env_action(action)
        kept = {"behaviour_logits": logits}
        if self._keep_value:
            kept["behaviour_value"] = outputs.value.cpu().numpy()
        return PolicyReply(action, env_action, kept, 0)


class EpsilonGreedy:
    """The best action, or with probability epsilon a random allowed one.

    `epsilon(env_steps)` gives one number or one per environment; `env_steps` counts this actor's
    own steps. Kept with each row: the value of the action taken and that of the best one, from
    which the error of an n-step window follows without asking a network again."""

    def __init__(
        self,
        network: Network,
        context: NodeContext,
        epsilon: Callable[[NodeContext, int], float | np.ndarray],
    ) -> None:
        self._epsilon, self._context = epsilon, context
        self._random = context.random("exploration")
        # The actor's own counter: it outlives restarts and is part of every checkpoint.
        self._env_steps = context.telemetry.counter("env_steps")

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply:
        q_values = masked_q(outputs.q_values, observations).numpy()
        action = q_values.argmax(-1)
        envs = len(action)
        explore = self._random.random(envs) < self._epsilon(
            self._context, int(self._env_steps.value)
        )
        count = int(np.count_nonzero(explore))
        if count:
            action[explore] = self._any_action(q_values[explore])
        values = {
            "value_taken": q_values[np.arange(envs), action],
            "value_best": q_values.max(-1),
        }
        return PolicyReply(action, action, values, 0)

    def _any_action(self, q_values: np.ndarray) -> np.ndarray:
        keys = self._random.random(q_values.shape)
        keys[q_values <= MASKED_LOGIT] = -1.0
        return keys.argmax(-1)


def annealed_epsilon(
    start: float, end: float, horizon_env_steps: float, context: NodeContext, env_steps: int
) -> float:
    """Falls with this actor's own steps."""
    return linear(start, end, horizon_env_steps, env_steps)


def drawn_epsilon(
    settings: AsynchronousQSettings, network: Network, context: NodeContext
) -> EpsilonGreedy:
    """A selection whose epsilon falls from 1 to an end that each actor draws once (A3C's Q)."""
    end = float(context.random("epsilon").choice(settings.epsilon_ends, p=settings.epsilon_odds))
    schedule = partial(annealed_epsilon, 1.0, end, settings.epsilon_env_steps)
    return EpsilonGreedy(network, context, schedule)


def laddered_epsilon(
    num_actors: int, base: float, alpha: float, num_envs: int, context: NodeContext, env_steps: int
) -> np.ndarray:
    """A fixed rung for each of this actor's environments, on a ladder over those of all actors."""
    rungs = context.index * num_envs + np.arange(num_envs)
    return np.asarray(epsilon_ladder(rungs, num_actors * num_envs, base, alpha))


class GaussianNoise:
    """The deterministic policy's action plus Gaussian noise, clipped to the action's bounds.

    `sigma` is in units of half the action's range. Kept with each row: the critic's values of the
    action taken and of the policy's own, from which the error of an n-step window follows."""

    def __init__(
        self, network: Network, context: NodeContext, sigma: float, noise_exponent: float = 0.0
    ) -> None:
        assert isinstance(network, DPGNetwork | TwinCriticNetwork)
        self._network, self._sigma = network, sigma
        self._noise = NoiseStream(noise_exponent, context.random("exploration"))

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply:
        own = outputs.action
        noise = self._noise.next(tuple(own.shape)) * np.float32(self._sigma)
        taken = (own + torch.from_numpy(noise)).clamp_(-1.0, 1.0)
        twice = {name: torch.cat((entry, entry)) for name, entry in observations.items()}
        both = self._network.critic(twice, torch.cat((taken, own))).numpy()
        action = taken.numpy()
        values = {"value_taken": both[: len(action)], "value_best": both[len(action) :]}
        return PolicyReply(action, self._network.env_action(action), values, 0)


def greedy_actions(
    network: Network, outputs: Any, observations: dict[str, torch.Tensor]
) -> torch.Tensor:
    """The action each head thinks best, without exploration."""
    if isinstance(outputs, QOutput):
        return masked_q(outputs.q_values, observations).argmax(-1)
    if isinstance(outputs, DPGOutput | SACOutput | TD3Output):
        return outputs.action
    assert network.distribution is not None
    return network.distribution.mode(outputs.logits)


@dataclass(frozen=True)
class LocalPolicyConfig:
    """How an actor acts with its own copy of the weights."""

    make_network: Callable[[], Network]
    make_selection: Callable[[Network, NodeContext], Selection] = SampleActions
    refresh_rows: int = 0
    """Take new weights every so many rows; 0: at the start of each trajectory only."""

    def __call__(
        self, context: NodeContext, port: ParameterSource, widths: list[int]
    ) -> LocalPolicy:
        return LocalPolicy(context, port, widths, self)


class LocalPolicy:
    """Answers at once, with weights that are as old as the last refresh."""

    def __init__(
        self,
        context: NodeContext,
        parameters: ParameterSource | list[ParameterSource],
        widths: list[int],
        config: LocalPolicyConfig,
    ) -> None:
        self._network = config.make_network().eval()
        self._flat = FlatParameters(self._network)
        self._weights = self._flat.numpy()
        self._select = config.make_selection(self._network, context)
        self._parameters, self._version = joined(parameters, self._flat), -1
        self._refresh_rows, self._rows_since_refresh = config.refresh_rows, 0
        self._states: list[State] = [self._network.initial_state(width) for width in widths]
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        self._input_names = self._network.input_names
        self._replies: list[PolicyReply | None] = [None for _ in widths]

    def refresh(self, minimum_version: int = 0) -> bool:
        due = self._rows_since_refresh >= self._refresh_rows
        if due or self._version < minimum_version:
            self._pull()
        return self._version >= minimum_version

    def _pull(self) -> None:
        newer = self._parameters.pull(self._weights, newer_than=self._version)
        if newer is not None:
            self._version = newer
        self._rows_since_refresh = 0

    def request(self, group: int, slot: Slot, row: int) -> None:
        if self._refresh_rows and self._rows_since_refresh >= self._refresh_rows:
            self._pull()
        self._rows_since_refresh += 1
        arrays, state = slot.arrays, self._states[group]
        if row == 0:
            for name, tensor in zip(self._state_names, state, strict=True):
                arrays[name][:] = tensor.numpy()
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(arrays[name][row]) for name in self._input_names}
            first = torch.from_numpy(arrays["first"][row])
            outputs, self._states[group] = self._network.step(tensors, state, first)
            reply = self._select(outputs, tensors)
        reply.version = self._version
        self._replies[group] = reply

    def reply(self, group: int) -> PolicyReply | None:
        return self._replies[group]
