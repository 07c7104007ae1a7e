# SPDX-License-Identifier: Apache-2.0
"""Where the roles and channels of a topology stand in its picture.

Data runs from left to right: roles in even columns, what they pass on between them. What goes back
(weights, priorities) has a lane of its own below, so that no two lines lie on each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from veldt.topology import UPDATES_SUFFIX

_FLOWS = ("queue", "requests", "stream")


@dataclass(frozen=True)
class Place:
    """A role or a channel in the grid. One that goes back has a lane: lanes lie, one under another,
    below the rows that end above `row`."""

    name: str
    sort: str
    column: int
    row: int
    lane: int | None = None

    @property
    def is_role(self) -> bool:
        return self.sort == "role"


@dataclass(frozen=True)
class Link:
    """A role at a channel: it writes, reads, or both."""

    role: str
    channel: str
    writes: bool
    reads: bool


@dataclass(frozen=True)
class Grid:
    roles: dict[str, Place]
    channels: dict[str, Place]
    links: list[Link]


def place(description: dict[str, Any]) -> Grid:
    """The grid of a topology's description."""
    wiring = _Wiring(description)
    roles: dict[str, Place] = {}
    channels: dict[str, Place] = {}
    taken: set[tuple[int, int]] = set()

    def stand(name: str, sort: str, column: int, row: int) -> Place:
        while (column, row) in taken:
            row += 1
        taken.add((column, row))
        return Place(name, sort, column, row)

    for role, rank in wiring.ranks().items():
        roles[role] = stand(role, "role", 2 * rank, 0)
    returns: list[_Return] = []
    for channel, sort in wiring.sorts.items():
        writers = [roles[link.role] for link in wiring.links_of(channel) if link.writes]
        readers = [roles[link.role] for link in wiring.links_of(channel) if link.reads]
        columns = [there.column for there in (*writers, *readers)]
        nearest = min((there.column for there in readers), default=2 * len(roles))
        if not columns:
            continue
        if sort == "shared" or len(set(columns)) == 1:
            channels[channel] = stand(channel, sort, min(columns) + 1, 0)
        elif nearest > max((there.column for there in writers), default=-1):
            row = min((there.row for there in readers), default=0)
            channels[channel] = stand(channel, sort, nearest - 1, row)
        else:
            returns.append(_Return(channel, sort, writers, readers))
    channels |= _lanes([*roles.values(), *channels.values()], returns)
    return Grid(roles, channels, [link for link in wiring.links if link.channel in channels])


class _Wiring:
    """Who writes and who reads each channel."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.roles = list(description["roles"])
        # The counts of updates beside shared weights are part of them.
        self.sorts = {
            name: entry["sort"]
            for name, entry in description["channels"].items()
            if not name.endswith(UPDATES_SUFFIX)
        }
        links = [Link(**link) for link in description["links"] if link["channel"] in self.sorts]
        # Whoever writes a board reads only its first version.
        self.links = [
            replace(link, reads=link.reads and not (link.writes and self._is_board(link.channel)))
            for link in links
        ]

    def _is_board(self, channel: str) -> bool:
        return self.sorts[channel] == "board"

    def links_of(self, channel: str) -> list[Link]:
        return [link for link in self.links if link.channel == channel]

    def ranks(self) -> dict[str, int]:
        """Steps from where data begins, along queues and questions."""
        following: dict[str, set[str]] = {role: set() for role in self.roles}
        for channel, sort in self.sorts.items():
            links = self.links_of(channel) if sort in _FLOWS else []
            for writer in (link.role for link in links if link.writes):
                following[writer] |= {link.role for link in links if link.reads} - {writer}
        fed = set().union(*following.values())
        first = [role for role in self.roles if following[role] and role not in fed]
        ranks = dict.fromkeys(first or self.roles[:1], 0)
        todo = deque(ranks)
        while todo:
            role = todo.popleft()
            for other in self.roles:
                if other in following[role] and other not in ranks:
                    ranks[other] = ranks[role] + 1
                    todo.append(other)
        for role in self.roles:
            if role not in ranks:
                own = {link.channel for link in self.links if link.role == role}
                beside = [link.role for link in self.links if link.channel in own]
                ranks[role] = 1 + max((ranks[name] for name in beside if name in ranks), default=-1)
        return ranks


@dataclass(frozen=True)
class _Return:
    """A channel that leads back, and the places at its ends."""

    channel: str
    sort: str
    writers: list[Place]
    readers: list[Place]

    @property
    def span(self) -> tuple[int, int]:
        columns = [there.column for there in (*self.writers, *self.readers)]
        return min(columns), max(columns)

    @property
    def column(self) -> int:
        """Halfway to the nearest reader."""
        start = min(there.column for there in self.writers)
        before = [there.column for there in self.readers if there.column < start]
        return (start + max(before)) // 2 if before else start + 1

    def crosses(self, other: _Return) -> bool:
        return self.span[0] < other.span[1] and other.span[0] < self.span[1]


def _lanes(standing: list[Place], returns: list[_Return]) -> dict[str, Place]:
    """Each below all that its span has above it, short ones first."""
    rows_at: dict[int, int] = {}
    for there in standing:
        rows_at[there.column] = max(rows_at.get(there.column, 0), there.row + 1)
    found: dict[str, Place] = {}
    done: list[_Return] = []
    for entry in sorted(returns, key=lambda entry: entry.span[1] - entry.span[0]):
        low, high = entry.span
        above = [found[other.channel] for other in done if entry.crosses(other)]
        rows = [rows_at.get(column, 0) for column in range(low, high + 1)]
        row = max(*rows, *(other.row for other in above))
        lanes = [other.lane for other in above if other.row == row and other.lane is not None]
        lane = 1 + max(lanes, default=-1)
        found[entry.channel] = Place(entry.channel, entry.sort, entry.column, row, lane)
        done.append(entry)
    return found
