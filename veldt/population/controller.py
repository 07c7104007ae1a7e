# SPDX-License-Identifier: Apache-2.0
"""The controller of a population: ranks policies by their returns, replaces and mutates them.

It publishes orders on a board; learners follow them between two updates and report on boards of
their own. Actors send it the returns of their policies.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.population.rules import Decision, PopulationOptions
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource, receive_all
from veldt.role import Arrays, Role
from veldt.types import Batch, Field, Layout, Parameters

POPULATION_LOG = "population.jsonl"
HYPERPARAMETERS = ("learning_rate", "entropy_coefficient")
_EPISODES_PER_MESSAGE = 256
_FIRST_AFTER_PERIODS = 4


@dataclass
class Orders:
    """The state of a population, one small vector on a board; arrays have one entry per member.

    The newest orders are complete: a learner that missed some in between loses nothing.
    """

    best: int
    """The member with the best mean return."""
    replacements: np.ndarray
    """Number of the last replacement that each member has to carry out; 0: none yet."""
    parents: np.ndarray
    """Member whose weights it then takes."""
    hyperparameters: np.ndarray
    """[P, H]"""

    @staticmethod
    def start(hyperparameters: np.ndarray) -> Orders:
        members = len(hyperparameters)
        return Orders(0, np.zeros(members, np.int64), np.arange(members), hyperparameters)

    @staticmethod
    def vector_size(num_members: int) -> int:
        return 1 + num_members * (2 + len(HYPERPARAMETERS))

    def to_vector(self) -> np.ndarray:
        """float32, exact for numbers of members and replacements below 2^24."""
        table = np.column_stack((self.replacements, self.parents, self.hyperparameters))
        return np.concatenate(([self.best], table.ravel())).astype(np.float32)

    @staticmethod
    def from_vector(vector: np.ndarray, num_members: int) -> Orders:
        table = vector[1:].reshape(num_members, -1).astype(np.float64)
        replacements, parents = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        return Orders(int(vector[0]), replacements, parents, table[:, 2:].copy())


class Generations:
    """The last replacement that each member has carried out.

    A member publishes its number on its own board, with the first version of its weights since as
    the board's version. Rows of older versions were acted by the policy before.
    """

    def __init__(self, boards: list[ParameterSource]) -> None:
        self._boards, self._number = boards, np.zeros(1, np.float32)
        self.generations = np.zeros(len(boards), np.int64)
        self.first_versions = np.full(len(boards), -1, np.int64)
        self.refresh()

    def refresh(self) -> None:
        for member, board in enumerate(self._boards):
            newer = board.pull(self._number, newer_than=int(self.first_versions[member]))
            if newer is not None:
                self.generations[member] = int(self._number[0])
                self.first_versions[member] = newer


def scores_layout() -> Layout:
    """A message of an actor to the controller: its policy's finished episodes, and its steps."""
    per_episode = (_EPISODES_PER_MESSAGE,)
    return Layout.of(
        policy=Field((1,), "int64"),
        env_steps=Field((1,), "int64"),
        count=Field((1,), "int64"),
        generation=Field(per_episode, "int64"),
        episode_return=Field(per_episode, "float64"),
    )


@dataclass(eq=False)
class PopulationController(Role):
    """Compares each member with others once per period.

    A comparison needs a full window of episodes of every member since its last replacement, because
    short episodes end first and the mean of a few misleads. It waits for replacements in progress.
    """

    scores: ExperienceSource
    orders: ParameterSink
    known: ParameterSource
    """The newest orders, which a restarted controller reads."""
    generations: list[ParameterSource]
    options: PopulationOptions
    defaults: tuple[float, ...]
    """The configured hyperparameters."""

    def open(self, context: NodeContext) -> None:
        self._context, members = context, self.options.num_policies
        self._generations = Generations(self.generations)
        vector = np.empty(Orders.vector_size(members), np.float32)
        version = self.known.pull(vector, newer_than=-1)
        assert version is not None  # the board begins with the first orders
        self._version, self._orders = version, Orders.from_vector(vector, members)
        self._returns: list[deque[float]] = [
            deque(maxlen=self.options.pbt_episodes) for _ in range(members)
        ]
        defaults = np.array(self.defaults, np.float32).astype(np.float64)
        self._rule = self.options.rule(defaults, context.random("population"))
        self._env_steps = np.zeros(members, np.int64)
        self._compared_at = np.zeros(members, np.int64)
        self._replacements = context.telemetry.counter("population.replacements")
        self._late = context.telemetry.counter("dropped.replaced_policy_episodes")

    def step(self) -> bool:
        received = receive_all(self.scores, self._receive)
        if received:
            self._compare_due_members()
        return received

    def _receive(self, batch: Batch) -> None:
        member, count = int(batch["policy"][0]), int(batch["count"][0])
        self._env_steps[member] += batch["env_steps"][0]
        generations = batch["generation"][:count].tolist()
        returns = batch["episode_return"][:count].tolist()
        for generation, episode_return in zip(generations, returns, strict=True):
            # Returns from before a replacement are those of another policy.
            if generation == self._orders.replacements[member]:
                self._returns[member].append(episode_return)
            else:
                self._late.add()

    def _compare_due_members(self) -> None:
        self._generations.refresh()
        if (self._orders.replacements > self._generations.generations).any():
            return
        if any(len(returns) < self.options.pbt_episodes for returns in self._returns):
            return
        objectives = np.array([np.mean(returns) for returns in self._returns])
        best = int(objectives.argmax())
        if best != self._orders.best:
            self._orders.best = best
            self._publish()
        period = self.options.pbt_period_env_steps
        old_enough = self._env_steps >= _FIRST_AFTER_PERIODS * period
        due = old_enough & (self._env_steps - self._compared_at > period)
        for member in np.flatnonzero(due).tolist():
            self._compared_at[member] = self._env_steps[member]
            decision = self._rule.decide(member, objectives, self._orders.hyperparameters)
            if decision is None:
                continue
            self._carry_out(member, decision, objectives)
            if decision.parent != member:
                return  # the others are compared once this one has its new weights

    def _carry_out(self, member: int, decision: Decision, objectives: np.ndarray) -> None:
        orders = self._orders
        old = orders.hyperparameters[member].copy()
        # As the board stores them, so that a restart finds the same numbers.
        orders.hyperparameters[member] = decision.hyperparameters.astype(np.float32)
        if decision.parent != member:
            orders.replacements[member] = orders.replacements.max() + 1
            orders.parents[member] = decision.parent
            self._returns[member].clear()
            self._replacements.add()
        self._publish()
        self._record(member, decision, objectives, old)

    def _publish(self) -> None:
        self._version += 1
        self.orders.publish(Parameters(self._orders.to_vector(), self._version))

    def _record(
        self, member: int, decision: Decision, objectives: np.ndarray, old: np.ndarray
    ) -> None:
        if self._context.run_dir is None:
            return
        replacement = int(self._orders.replacements[member])
        entry = {
            "env_steps": int(self._env_steps.sum()),
            "policy": member,
            "policy_env_steps": int(self._env_steps[member]),
            "weights_from": decision.parent,
            "replacement": replacement if decision.parent != member else None,
            "reason": decision.reason,
            "mean_returns": objectives.tolist(),
            "old": _named(old),
            "new": _named(decision.hyperparameters),
        }
        with open(self._context.run_dir / POPULATION_LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def state(self) -> Arrays:
        """Without the orders, which are saved with their board."""
        windows = {f"returns.{m}": np.array(r) for m, r in enumerate(self._returns)}
        return {
            "env_steps": self._env_steps,
            "judged_at": self._compared_at,
            "replacements": self._orders.replacements,
            **windows,
        }

    def load_state(self, state: Arrays) -> None:
        self._env_steps[:], self._compared_at[:] = state["env_steps"], state["judged_at"]
        for member, returns in enumerate(self._returns):
            if state["replacements"][member] == self._orders.replacements[member]:
                returns.extend(state[f"returns.{member}"].tolist())


def _named(values: np.ndarray) -> dict[str, float]:
    named = zip(HYPERPARAMETERS, values.tolist(), strict=True)
    return {name: float(f"{value:.6g}") for name, value in named}  # float32 has no more
