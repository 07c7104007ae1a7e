# SPDX-License-Identifier: Apache-2.0
"""Puts the rows of many actors together into trajectories, where they are received.

Row T of a trajectory is row 0 of the next one. What an actor had begun before its connection broke
is dropped whole: nothing is delivered twice, and nothing is joined that does not belong together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from veldt.ports import ExperienceSink, ReceivedRow
from veldt.types import (
    LAST_ACTION,
    LAST_REWARD,
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    Slot,
    is_answer_of_environment,
)


@dataclass
class _Track:
    """The trajectory that one group of environments is in."""

    number: int
    connection: int = -1
    incarnation: int = 0
    sequence: int = 0
    slot: Slot | None = None
    row: int = 0
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """Last action and reward, for networks that want them."""


class TrajectoryAssembler:
    """Writes received rows into slots of `sink`, one slot per group at a time."""

    def __init__(self, sink: ExperienceSink, num_groups: int) -> None:
        self._sink = sink
        self._tracks = [_Track(number) for number in range(num_groups)]
        self.committed = 0
        self.dropped = 0
        """Trajectories that were not finished because the connection broke."""

    def is_new_connection(self, number: int, row: ReceivedRow) -> bool:
        return row.connection != self._tracks[number].connection

    def begin_anew(self, number: int, row: ReceivedRow) -> None:
        """Forget what the group had begun; the slot it holds is used again."""
        track = self._tracks[number]
        self.dropped += track.slot is not None and track.connection >= 0
        track.connection, track.incarnation = row.connection, row.incarnation
        track.sequence += 1  # leaves a gap: nothing that follows continues what came before
        track.row = -1
        for array in track.past.values():
            array[:] = 0

    def receive(self, number: int, row: ReceivedRow) -> None:
        """Finish the last row with what the environment answered, and hand over the trajectory
        that this completes."""
        track, arrays = self._tracks[number], row.arrays
        if track.slot is not None and track.row >= 0:
            for name, array in arrays.items():
                if is_answer_of_environment(name):
                    track.slot[name][track.row] = array
            if track.past:
                track.past[LAST_ACTION][:] = track.slot["action"][track.row]
                track.past[LAST_REWARD][:] = arrays["reward"]
        track.row += 1
        if track.slot is not None and track.row == len(track.slot["first"]) - 1:
            self._write_row(track, arrays)
            self._sink.commit(track.slot)
            self.committed += 1
            track.slot, track.row = None, 0
            track.sequence += 1

    def place(self, number: int, row: ReceivedRow) -> tuple[Slot, int] | None:
        """Where the received row lies now and its action will; None while the learner is behind and
        there is no room."""
        track = self._tracks[number]
        if track.slot is None:
            track.slot = self._sink.reserve()
            if track.slot is None:
                return None
        if LAST_ACTION in track.slot.arrays and not track.past:
            for name in (LAST_ACTION, LAST_REWARD):
                track.past[name] = np.zeros_like(track.slot[name][0])
        if track.row == 0:
            self._stamp(track)
        self._write_row(track, row.arrays)
        return track.slot, track.row

    @staticmethod
    def _write_row(track: _Track, arrays: dict[str, np.ndarray]) -> None:
        assert track.slot is not None
        for name, array in arrays.items():
            if not is_answer_of_environment(name):
                track.slot[name][track.row] = array
        for name, array in track.past.items():
            track.slot[name][track.row] = array

    @staticmethod
    def _stamp(track: _Track) -> None:
        assert track.slot is not None
        provenance = track.slot["provenance"][0]
        provenance[PROVENANCE_ACTOR] = track.number
        provenance[PROVENANCE_INCARNATION] = track.incarnation
        provenance[PROVENANCE_SEQUENCE] = track.sequence
