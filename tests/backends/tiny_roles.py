# SPDX-License-Identifier: Apache-2.0
"""Roles of a few lines that check what they are given. A violation raises, which stops the run.

A role counts what it did, so that a test can look at it from outside, on any backend."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperienceSink, ExperienceSource, ParameterSink, ParameterSource
from veldt.role import Arrays, Role
from veldt.types import (
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    Field,
    Layout,
    Parameters,
    Slot,
)

ROWS, COLUMNS = 3, 2


def record_layout(words: int = 512) -> Layout:
    """Rows first, as a trajectory has them, so that joining along the wrong axis shows."""
    return Layout.of(
        payload=Field((ROWS, COLUMNS, words), "int64", join_axis=1),
        provenance=Field((1, 4), "int64", join_axis=0),
    )


def _stamp(actor: int, incarnation: int, sequence: int) -> int:
    return (actor << 48) + (incarnation << 40) + sequence


@dataclass(eq=False)
class Producer(Role):
    """Commits numbered records as fast as it may, `limit` of them."""

    sink: ExperienceSink
    limit: int = 1 << 40
    ends: tuple[object, ...] = ()

    def open(self, context: NodeContext) -> None:
        self._context = context
        self._produced = context.telemetry.counter("produced")
        self._idle = context.telemetry.counter("idle_steps")
        context.telemetry.counter("incarnation").set(context.incarnation)
        context.telemetry.counter("process_id").set(os.getpid())
        self._sequence = 0

    def step(self) -> bool:
        slot = self.sink.reserve() if self._sequence < self.limit else None
        if slot is None:
            self._idle.add()
            return False
        self._write(slot)
        self.sink.commit(slot)
        self._sequence += 1
        self._produced.add()
        return True

    def _write(self, slot: Slot) -> None:
        index, incarnation = self._context.index, self._context.incarnation
        rows = np.arange(ROWS)[:, None, None] << 32
        slot["payload"][:] = _stamp(index, incarnation, self._sequence) + rows
        slot["provenance"][0, PROVENANCE_ACTOR] = index
        slot["provenance"][0, PROVENANCE_INCARNATION] = incarnation
        slot["provenance"][0, PROVENANCE_SEQUENCE] = self._sequence


class Hoarder(Producer):
    """Its first incarnation takes every slot and hands none over."""

    def step(self) -> bool:
        if self._context.incarnation:
            return super().step()
        if self.sink.reserve() is None:
            self._context.telemetry.counter("hoarded").set(1)
            return False
        return True


class Sleeper(Producer):
    """Its first incarnation never comes back from a step."""

    def step(self) -> bool:
        while not self._context.incarnation:
            time.sleep(60.0)
        return super().step()


@dataclass(eq=False)
class Consumer(Role):
    """Takes batches and checks content, and that each producer's records arrive in order, once.

    After `stall_after` batches it takes no more and only pretends to work."""

    restartable: ClassVar[bool] = False
    source: ExperienceSource
    stall_after: int = 1 << 40
    ends: tuple[object, ...] = ()

    def open(self, context: NodeContext) -> None:
        self._received = context.telemetry.counter("received")
        self._incarnation = context.telemetry.counter("newest_incarnation")
        self._order = context.telemetry.counter("order_of_arrival")
        self._next: dict[int, tuple[int, int]] = {}

    def step(self) -> bool:
        if self._received.value >= self.stall_after:
            time.sleep(0.001)
            return True
        batch = self.source.take_batch()
        if batch is None:
            return False
        self._check(batch["provenance"][0], batch["payload"])
        self._received.add()
        self.source.release(batch)
        return True

    def _check(self, provenance: np.ndarray, columns: np.ndarray) -> None:
        actor, incarnation, sequence = (int(number) for number in provenance[:3])
        rows = (columns - _stamp(actor, incarnation, sequence)) >> 32
        assert (rows == np.arange(ROWS)[:, None, None]).all(), "a record of mixed content"
        last_incarnation, expected = self._next.get(actor, (incarnation, 0))
        if incarnation == last_incarnation:
            assert sequence == expected, f"{sequence} of actor {actor} came instead of {expected}"
        else:
            assert incarnation > last_incarnation, "a record of an older incarnation came late"
        self._next[actor] = (incarnation, sequence + 1)
        self._incarnation.set(max(incarnation, self._incarnation.value))
        self._order.set((self._order.value * 31 + actor + 1) % 1_000_003)


@dataclass(eq=False)
class Writer(Role):
    """Publishes vectors whose every element is the version, as fast as it can."""

    restartable: ClassVar[bool] = False
    weights: ParameterSink
    size: int
    versions: int

    def open(self, context: NodeContext) -> None:
        self._vector = np.empty(self.size, np.float32)
        self._version = context.telemetry.counter("version")

    def step(self) -> bool:
        if self._version.value >= self.versions:
            return False
        self._version.add()
        self._vector[:] = self._version.value
        self.weights.publish(Parameters(self._vector, int(self._version.value)))
        return True


@dataclass(eq=False)
class Reader(Role):
    """Pulls and checks that versions only grow and that none is a mix of two."""

    restartable: ClassVar[bool] = False
    weights: ParameterSource
    size: int

    def open(self, context: NodeContext) -> None:
        self._vector = np.empty(self.size, np.float32)
        self._version = context.telemetry.counter("version")
        self._version.set(-1)

    def step(self) -> bool:
        version = self.weights.pull(self._vector, newer_than=int(self._version.value))
        if version is None:
            return False
        assert version > self._version.value, "a version went back"
        assert (self._vector == version).all(), "weights of two versions in one vector"
        self._version.set(version)
        return True


@dataclass(eq=False)
class Failing(Role):
    """Raises when it is opened or in its third step."""

    where: str

    def open(self, context: NodeContext) -> None:
        self._steps = 0
        if self.where == "open":
            raise ValueError("broken on purpose")

    def step(self) -> bool:
        self._steps += 1
        if self.where == "step" and self._steps >= 3:
            raise ValueError("broken on purpose")
        return True


@dataclass(eq=False)
class Idle(Role):
    """Never has anything to do, whatever ends it has; dies for good when killed."""

    restartable: ClassVar[bool] = False
    ends: tuple[object, ...] = ()

    def open(self, context: NodeContext) -> None:
        context.telemetry.counter("process_id").set(os.getpid())

    def step(self) -> bool:
        return False


@dataclass(eq=False)
class Meeting(Role):
    """Waits within a step for its colocated peer to be within one too: only threads can meet."""

    restartable: ClassVar[bool] = False
    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def open(self, context: NodeContext) -> None:
        self._met = context.telemetry.counter("met")
        context.telemetry.counter("process_id").set(os.getpid())

    def step(self) -> bool:
        if self._met.value:
            return False
        self.barrier.wait(timeout=20.0)
        self._met.set(1)
        return True


class Lemming(Idle):
    """Kills its own process at the first step, in every incarnation."""

    restartable: ClassVar[bool] = True

    def step(self) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return True


@dataclass(eq=False)
class Keeper(Role):
    """Counts its steps and remembers the count."""

    restartable: ClassVar[bool] = False

    def open(self, context: NodeContext) -> None:
        self._steps = 0
        self._shown = context.telemetry.counter("steps")
        self._began_at = context.telemetry.counter("began_at")

    def step(self) -> bool:
        self._steps += 1
        self._shown.set(self._steps)
        time.sleep(0.0005)
        return True

    def state(self) -> Arrays:
        return {"steps": np.array(self._steps)}

    def load_state(self, state: Arrays) -> None:
        self._steps = int(state["steps"])
        self._began_at.set(self._steps)


@dataclass(eq=False)
class KeptWriter(Keeper):
    """Publishes its count."""

    weights: ParameterSink

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._version = context.telemetry.counter("version")

    def step(self) -> bool:
        super().step()
        self.weights.publish(Parameters(np.full(10, self._steps, np.float32), self._steps))
        self._version.set(self._steps)
        return True
