# SPDX-License-Identifier: Apache-2.0
"""IMPALA's synchronous learners: two that step together against one with the joined batch.

All learners are fed the same trajectories of real environments, so that only the learning differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veldt.backends.serial import SerialBackend
from veldt.losses.actor_critic import ActorCritic
from veldt.networks import FlatParameters
from veldt.ports import ExperienceSink, ExperienceSource
from veldt.role import Arrays, Role
from veldt.roles.actor import Actor
from veldt.roles.gradients import synchronous_group
from veldt.roles.learner import Learner
from veldt.roles.policies import LocalPolicy
from veldt.run.plan import Plan, make_plan
from veldt.topology import Topology
from veldt.types import Layout

from .claim import Claim, Criterion, Row, select, settings
from .figures import lines
from .training import serial_options


@dataclass(frozen=True)
class TwoLearners(Claim):
    """Two synchronous learners against one with both batches joined."""

    name = "two_learners"
    statement = "Two learners equal one learner with the joined batch."
    paper = "IMPALA (Espeholt et al., 2018)"
    rule = (
        "Fed the same trajectories, the weights of two learners and of one with the joined batch"
        " stay closer than 0.001 of the distance they have moved, after every update and for every"
        " seed; and one learner with half of the data ends further away than 0.01 of it, which"
        " shows that the distance can be seen (serial backend, deterministic, with IMPALA's control"
        " preset, return normalisation included)."
    )
    caption = (
        "Largest difference between the weights of one learner with the joined batch and of two"
        " learners, in parts of the largest change since the start; beside it one learner that gets"
        " half of the data. Rounding differs, as sums are taken in another order."
    )
    is_timed = False
    quick_settings = settings(updates=20, seeds=1)

    envs: int = 16
    """Environments of each trajectory."""
    updates: int = 200
    """Updates of each run."""

    def measure(self, case: Row) -> Row:
        options = serial_options(case["seed"], self.env, actors=2, envs=self.envs)
        apart, half = self._differences(make_plan("impala", options, {}))
        return {"two_learners": apart.tolist(), "half_the_data": half.tolist()}

    def _differences(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Of two learners, and of one with half of the data, from one with the joined batch: after
        every update, in parts of the way moved. Statistics are no weights and do not count."""
        sent = [_recorded(plan, self.updates, source) for source in range(2)]
        flat = FlatParameters(plan.topology.network.make())
        trained = slice(flat.num_trained)
        joined, apart, half = (
            _history(plan, sources)[:, trained]
            for sources in ([sent], [[sent[0]], [sent[1]]], [[sent[0]]])
        )
        moved = np.maximum(np.abs(joined - flat.numpy()[trained]).max(axis=1), 1e-12)
        first, second = (np.abs(other - joined).max(axis=1) / moved for other in (apart, half))
        return first, second

    def judge(self, rows: list[Row]) -> list[Criterion]:
        worst = max(max(row["two_learners"]) for row in rows)
        control = min(row["half_the_data"][-1] for row in rows)
        return [
            Criterion.exactly(
                "largest difference, in parts of the way moved", worst, 1e-3, above=False
            ),
            Criterion.exactly("the same with half of the data", control, 1e-2),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        groups = {
            label: np.array([row[key] for row in select(rows)]).T
            for label, key in (
                ("half of the data", "half_the_data"),
                ("two learners", "two_learners"),
            )
        }
        x = range(1, len(rows[0]["two_learners"]) + 1)
        lines(axis, x, groups, ("updates", "difference over way moved"))
        axis.set_yscale("log")


@dataclass(eq=False)
class _Recorder(Role):
    """Hands every trajectory to `keep`, as a copy."""

    source: ExperienceSource
    keep: Callable[[Arrays], None]

    def step(self) -> bool:
        batch = self.source.take_batch()
        if batch is None:
            return False
        self.keep({name: array.copy() for name, array in batch.arrays.items()})
        self.source.release(batch)
        return True


@dataclass(eq=False)
class _Feeder(Role):
    """Sends its trajectories in turn."""

    sink: ExperienceSink
    trajectories: list[Arrays]

    def step(self) -> bool:
        slot = self.sink.reserve() if self.trajectories else None
        if slot is None:
            return False
        trajectory = self.trajectories.pop(0)
        for name, array in slot.arrays.items():
            array[...] = trajectory[name]
        self.sink.commit(slot)
        return True


@dataclass(eq=False, kw_only=True)
class _NotingLearner(Learner):
    """Hands its weights to `note` after every update."""

    note: Callable[[np.ndarray], None]

    def _updated(self, version: int) -> None:
        super()._updated(version)
        self.note(self._flat.numpy().copy())


def _layout(plan: Plan) -> Layout:
    return plan.topology.queues[0].spec.layout


def _recorded(plan: Plan, count: int, source: int) -> list[Arrays]:
    """Trajectories of an actor that keeps the first weights."""
    network, kept = plan.topology.network, list[Arrays]()
    topology = Topology(network)
    queue = topology.queue("trajectories", _layout(plan), 2)
    policy = LocalPolicy(network, topology.board("weights", network).source())
    actor = plan.topology.of("actor")[source].role
    assert isinstance(actor, Actor)
    topology.add("actor", replace(actor, policy=policy, sink=queue.sink))
    topology.add("recorder", _Recorder(queue.source(), kept.append))
    _advance(topology, plan.problem.seed * 2 + source, lambda: len(kept) >= count)
    return kept[:count]


def _advance(topology: Topology, seed: int, enough: Callable[[], bool]) -> None:
    backend = SerialBackend(topology, seed)
    backend.start()
    while not enough():
        backend.advance(0.0)
    backend.stop()


def _history(plan: Plan, sources: list[list[list[Arrays]]]) -> np.ndarray:
    """Weights of the first learner after every update; each learner joins what its sources send."""
    network, config, noted = plan.topology.network, plan.config, list[np.ndarray]()
    topology = Topology(network)
    board = topology.board("weights", network)
    group = synchronous_group(
        topology, board, config.optimizer, len(sources), config.loss.reduction
    )
    for index, (own, gradients) in enumerate(zip(sources, group, strict=True)):
        queue = topology.queue(f"trajectories-{index}", _layout(plan), 2 * len(own))
        in_turn = [trajectory for pair in zip(*own, strict=True) for trajectory in pair]
        topology.add("feeder", _Feeder(queue.sink, in_turn))
        topology.add(
            "learner",
            _NotingLearner(
                network,
                queue.source(len(own)),
                ActorCritic(config.loss),
                gradients,
                board.source(),
                None if index else board.sink,
                note=list[np.ndarray]().append if index else noted.append,
            ),
        )
    updates = len(sources[0][0])
    _advance(topology, plan.problem.seed, lambda: len(noted) >= updates)
    return np.stack(noted)
