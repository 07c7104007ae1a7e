# SPDX-License-Identifier: Apache-2.0
"""Roles of a few lines that ask and answer about rows, and check what they see of each other."""

from __future__ import annotations

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
    """A trajectory as small as it may be: something of each of its kinds of fields."""

    def per_row(*shape: int, dtype: str = "int64") -> Field:
        return Field((ROWS, *shape), dtype, join_axis=1)

    return Layout.of(
        **{
            "observation.place": per_row(COLUMNS, 2),
            "first": per_row(COLUMNS, dtype="bool"),
            "action": per_row(COLUMNS),
            "reward": per_row(COLUMNS, dtype="float32"),
            "behaviour_value": per_row(COLUMNS, dtype="float32"),
            "state.core": Field((COLUMNS, 2), "int64"),
            "parameter_version": per_row(1),
            "provenance": Field((1, 4), "int64"),
        }
    )


def expected_action(slot: Slot, row: int) -> np.ndarray:
    return slot["observation.place"][row].sum(axis=-1) * 2 + slot["first"][row]


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
        self._check(self._slot)
        self._row += 1
        if self._row < ROWS:
            self._ask(self._slot)
        else:
            self.sink.commit(self._slot)
            self._slot = None
        return True

    def _begin(self) -> bool:
        if self._sent >= self.limit:
            return False
        self._slot = self.sink.reserve()
        if self._slot is None:
            return False
        for array in self._slot.arrays.values():
            array[...] = _UNTOUCHED
        provenance = self._slot["provenance"][0]
        provenance[PROVENANCE_ACTOR] = self._context.index
        provenance[PROVENANCE_INCARNATION] = self._context.incarnation
        self._row, self._sent = 0, self._sent + 1
        self._ask(self._slot)
        return True

    def _ask(self, slot: Slot) -> None:
        stamp = self._context.index * 1_000_000 + self._sent * 1000 + self._row * 10
        slot["observation.place"][self._row] = stamp + np.arange(COLUMNS * 2).reshape(COLUMNS, 2)
        slot["first"][self._row] = (np.arange(COLUMNS) + self._sent) % 2 == 0
        self.port.send(slot, self._row)

    def _check(self, slot: Slot) -> None:
        row = self._row
        np.testing.assert_array_equal(slot["action"][row], expected_action(slot, row))
        half = (slot["action"][row] / 2).astype(np.float32)  # as the field stores it
        np.testing.assert_array_equal(slot["behaviour_value"][row], half)
        assert slot["parameter_version"][row] == row + 7
        np.testing.assert_array_equal(slot["state.core"], slot["observation.place"][0] + 1)
        assert (slot["reward"][row] == _UNTOUCHED).all(), "written by the one who answers"
        assert (slot["action"][row + 1 :] == _UNTOUCHED).all(), "answered before it was asked"
        self._answered.add()


@dataclass(eq=False)
class Answerer(Role):
    """Does to a row what an inference server does, with arithmetic for a network."""

    requests: RequestServer

    def open(self, context: NodeContext) -> None:
        self._answers = context.telemetry.counter("answers")
        context.telemetry.counter("process_id").set(os.getpid())

    def step(self) -> bool:
        taken = self.requests.take()
        if taken is None:
            return False
        slot, row = taken
        slot["action"][row] = expected_action(slot, row)
        slot["behaviour_value"][row] = slot["action"][row] / 2
        slot["parameter_version"][row] = row + 7
        if row == 0:
            slot["state.core"][:] = slot["observation.place"][0] + 1
        self.requests.answer(slot, row, int(slot["provenance"][0, PROVENANCE_ACTOR]))
        self._answers.add()
        return True


class Swallower(Answerer):
    """Its first incarnation takes questions and answers none."""

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._is_mute = context.incarnation == 0
        self._swallowed = context.telemetry.counter("swallowed")

    def step(self) -> bool:
        if not self._is_mute:
            return super().step()
        if self.requests.take() is None:
            return False
        self._swallowed.add()
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
