# SPDX-License-Identifier: Apache-2.0
"""A replay of sequences, ranked by what the acting network thought of them (SEED's R2D2).

The first priority needs no second forward pass and no target network: the values of the action
taken and of the best one come with each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from veldt.algorithms.r2d2 import sequence_priority, sequence_targets
from veldt.errors import ConfigurationError
from veldt.networks import Network
from veldt.objectives.r2d2 import R2D2Settings
from veldt.problem import Problem
from veldt.replay import PrioritizedSampler, RateLimiter, SequenceStore
from veldt.replay.layouts import sequence_layout
from veldt.roles.policies.ladder import LadderGreedy
from veldt.roles.replay.replay import Replay, priority_layout
from veldt.topology import Node, Queue, Topology
from veldt.types import LAST_ACTION, LAST_REWARD, VALUE_BEST, VALUE_TAKEN, Field, Layout


@dataclass(frozen=True)
class SequenceReplaySettings(R2D2Settings):
    """What is kept, how often it is learned from, and how actors explore."""

    batch_sequences: int = 32
    """r2d2: sequences per update."""
    replay_sequences: int = 5_000
    """r2d2: sequences kept; the oldest go first."""
    min_replay_sequences: int = 200
    """r2d2: sequences before the first update."""
    replay_ratio: float = 8.0
    """r2d2: how often each sequence is learned from on average."""
    priority_exponent: float = 0.9
    """r2d2: probability of a sequence: its priority to this power; 0: uniform."""
    importance_exponent: float = 0.6
    """r2d2: how far importance weights undo the priorities' bias; 1: fully."""
    epsilon_base: float = 0.1
    """r2d2: share of random actions of the most curious environment."""
    epsilon_alpha: float = 7.0
    """r2d2: the least curious environment has epsilon_base to the power 1 + this."""
    prefetch_batches: int = 2
    """r2d2: batches that wait for the learner."""

    def check_sequences(self, trajectory_steps: int) -> None:
        if self.unroll_steps % trajectory_steps:
            raise ConfigurationError(
                f"unroll_steps {self.unroll_steps} is not a multiple of trajectory_steps"
                f" {trajectory_steps}; sequences begin where a trajectory does"
            )

    def exploration(self, num_envs: int) -> Callable[..., LadderGreedy]:
        """Each of all environments keeps its own share of random actions."""
        base, alpha = self.epsilon_base, self.epsilon_alpha
        return partial(LadderGreedy, num_envs=num_envs, base=base, alpha=alpha)

    @property
    def sequence_steps(self) -> int:
        return self.burn_in_steps + self.unroll_steps

    def store(self, layout: Layout, frame_stack: int) -> Callable[[], RankedSequences]:
        return partial(
            RankedSequences,
            layout,
            self.replay_sequences * self.unroll_steps,
            gamma=self.gamma,
            n_step=self.n_step,
            eta=self.priority_eta,
            burn_in=self.burn_in_steps,
            unroll=self.unroll_steps,
            frame_stack=frame_stack,
        )

    def sampler(self) -> Callable[[SequenceStore], PrioritizedSampler]:
        return partial(
            PrioritizedSampler, alpha=self.priority_exponent, beta=self.importance_exponent
        )

    def limiter(self, group_width: int) -> Callable[[], RateLimiter]:
        return partial(
            RateLimiter,
            self.replay_ratio,
            self.min_replay_sequences,
            largest_insert=group_width,
            largest_sample=self.batch_sequences,
        )

    def add_replay(
        self, topology: Topology, trajectories: Queue, frame_stack: int
    ) -> tuple[dict[str, Any], Node]:
        """Put a replay behind `trajectories`: the learner's ports, and the replay's node."""
        layout, size = trajectories.spec.layout, self.batch_sequences
        batches = topology.queue("batches", self.batch_layout(layout), self.prefetch_batches)
        errors = priority_layout(size)
        priorities = topology.queue("priorities", errors, self.prefetch_batches + 2)
        replay = topology.add(
            "replay",
            Replay,
            source=trajectories.source(),
            sink=batches.sink,
            feedback=priorities.source(),
            make_store=self.store(layout, frame_stack),
            make_sampler=self.sampler(),
            make_limiter=self.limiter(layout["first"].shape[1]),
            batch_size=size,
            initial_priorities=True,
        )
        return {"source": batches.source(), "feedback": priorities.sink}, replay

    def batch_layout(self, trajectories: Layout) -> Layout:
        """What a learner gets: sequences and their importance weights."""
        kept = kept_outputs(trajectories)
        batch = sequence_layout(trajectories, self.sequence_steps, self.batch_sequences, kept)
        weight = Field((self.batch_sequences,), "float32")
        return Layout((*batch.fields, ("weight", weight)))


PUBLISHED_R2D2: dict[str, Any] = {
    "gamma": 0.997,
    "learning_rate": 1e-4,
    "optimizer_epsilon": 1e-3,
    "max_grad_norm": 80.0,
    "trajectory_steps": 40,
    "burn_in_steps": 40,
    "unroll_steps": 80,
    "n_step": 5,
    "target_period_updates": 2_500,
    "batch_sequences": 64,
    "replay_sequences": 100_000,
    "min_replay_sequences": 5_000,
    "replay_ratio": 0.75,
    "epsilon_base": 0.4,
}
"""SEED's constants for Atari; what is missing is a default."""


def memory_network(problem: Problem) -> Callable[[], Network]:
    """A dueling Q network with a memory; on images it also has R2D2's size and inputs."""
    problem.require_action_kind("r2d2", "discrete")
    chosen = problem.network
    changes: dict[str, Any] = {"recurrent": chosen.recurrent}
    if chosen.recurrent == "none":
        changes["recurrent"] = "lstm"
    if any(leaf.kind == "image" for leaf in problem.spec.observation):
        changes |= {"recurrent_size": 512, "last_action_and_reward": True}
    return problem.make_network("q", dueling=True, **changes)


def kept_outputs(trajectories: Layout) -> tuple[str, ...]:
    """What a replay of sequences keeps beside observations, actions and what followed."""
    optional = (LAST_ACTION, LAST_REWARD, VALUE_TAKEN, VALUE_BEST)
    return tuple(name for name in optional if name in trajectories)


class RankedSequences(SequenceStore):
    """A SequenceStore that knows how much its sequences surprised whoever acted."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        *,
        gamma: float,
        n_step: int,
        eta: float,
        **options: Any,
    ) -> None:
        super().__init__(layout, capacity, outputs=kept_outputs(layout), **options)
        self._gamma, self._n_step, self._eta = gamma, n_step, eta

    def td_errors(self, items: np.ndarray, taken: str, best: str) -> np.ndarray:
        """Priorities of `items` from the values kept with their rows.

        The bootstrap row has been seen but not acted upon yet, so the last row's error is left out.
        Where environments reset within the step, the value after a time limit was never computed:
        such a row counts as an end."""
        if not items.size:
            return np.empty(0, np.float32)
        entries = self._entries(items)[self.burn_in : -1]
        arrays = {
            name: torch.from_numpy(self.blocks.arrays[name][entries])
            for name in (taken, best, "reward", "terminated", "truncated", "ignored")
        }
        next_best = arrays[best][1:].unsqueeze(-1)
        terminated, truncated = arrays["terminated"][:-1], arrays["truncated"][:-1]
        if self.blocks.final_leaves:
            terminated = terminated | truncated
        ignored = arrays["ignored"][:-1]
        targets = sequence_targets(
            arrays["reward"][:-1],
            next_best,
            next_best,
            terminated,
            truncated,
            ignored,
            self._gamma,
            self._n_step,
        )
        errors = (targets - arrays[taken][:-1]).abs()
        return sequence_priority(errors, ~ignored, self._eta).numpy()
