# SPDX-License-Identifier: Apache-2.0
"""Roles of a few lines that ask and answer about rows, and check what they see of each other."""

import os
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperienceSink, ExperienceSource, RequestClient, RequestServer
from veldt.role import Role
from veldt.types import PROVENANCE_ACTOR, PROVENANCE_INCARNATION, Field, Layout, Slot

ROWS, COLUMNS = 4, 3
_UNTOUCHED = -1


def row_layout() -> Layout:
    """A trajectory as small as it may be."""
    return Layout.of(
        first=Field((ROWS, COLUMNS), "bool", join_axis=1),
        observation=Field((ROWS, COLUMNS), "int64", join_axis=1),
        action=Field((ROWS, COLUMNS), "int64", join_axis=1),
        provenance=Field((1, 4), "int64"),
    )


def expected_action(slot: Slot, row: int) -> np.ndarray:
    return slot["observation"][row] * 2 + 1


@dataclass(eq=False)
class Asker(Role):
    """Asks about each row, one after the other, and hands over slots that are answered in full."""

    sink: ExperienceSink
    port: RequestClient
    limit: int = 1 << 40

    def open(self, context: NodeContext) -> None:
        self._context = context
        self._slot: Slot | None = None
        self._row = self._sent = 0
        self._answered = context.telemetry.counter("answered")
        self._idle = context.telemetry.counter("idle_steps")
        context.telemetry.counter("process_id").set(os.getpid())
        context.telemetry.counter("incarnation").set(context.incarnation)

    def step(self) -> bool:
        if self._slot is None:
            return self._begin()
        answer = self.port.answered()
        if answer is None:
            self._idle.add()
            return False
        if answer != (self._slot.index, self._row):
            assert self._context.incarnation, "an answer to a question that was never asked"
            return True
        actions = self._slot["action"]
        np.testing.assert_array_equal(actions[self._row], expected_action(self._slot, self._row))
        assert (actions[self._row + 1 :] == _UNTOUCHED).all(), "answered before it was asked"
        self._answered.add()
        self._row += 1
        if self._row < ROWS:
            self._ask(self._slot)
        else:
            self.sink.commit(self._slot)
            self._slot = None
        return True

    def _begin(self) -> bool:
        self._slot = self.sink.reserve() if self._sent < self.limit else None
        if self._slot is None:
            return False
        self._slot["action"][:] = _UNTOUCHED
        provenance = self._slot["provenance"][0]
        provenance[PROVENANCE_ACTOR] = self._context.index
        provenance[PROVENANCE_INCARNATION] = self._context.incarnation
        self._row, self._sent = 0, self._sent + 1
        self._ask(self._slot)
        return True

    def _ask(self, slot: Slot) -> None:
        stamp = self._context.index * 1_000_000 + self._sent * 1000 + self._row * 10
        slot["observation"][self._row] = stamp + np.arange(COLUMNS)
        self.port.send(slot, self._row)


@dataclass(eq=False)
class Answerer(Role):
    """Answers as an inference server does, with arithmetic for a network.

    The first incarnation of a mute one takes questions and answers none."""

    requests: RequestServer
    mute: bool = False

    def open(self, context: NodeContext) -> None:
        self._answers = context.telemetry.counter("answers")
        self._swallowed = context.telemetry.counter("swallowed")
        self._is_mute = self.mute and context.incarnation == 0
        context.telemetry.counter("process_id").set(os.getpid())

    def step(self) -> bool:
        taken = self.requests.take()
        if taken is None:
            return False
        if self._is_mute:
            self._swallowed.add()
            return True
        slot, row = taken
        slot["action"][row] = expected_action(slot, row)
        self.requests.answer(slot, row, int(slot["provenance"][0, PROVENANCE_ACTOR]))
        self._answers.add()
        return True


@dataclass(eq=False)
class Judge(Role):
    """Takes what the askers hand over; every row of it must be answered."""

    source: ExperienceSource

    def open(self, context: NodeContext) -> None:
        self._received = context.telemetry.counter("received")
        self._incarnation = context.telemetry.counter("newest_incarnation")

    def step(self) -> bool:
        batch = self.source.take_batch()
        if batch is None:
            return False
        (slot,) = batch.slots
        for row in range(ROWS):
            np.testing.assert_array_equal(slot["action"][row], expected_action(slot, row))
        incarnation = slot["provenance"][0, PROVENANCE_INCARNATION]
        self._incarnation.set(max(self._incarnation.value, incarnation))
        self._received.add()
        self.source.release(batch)
        return True
