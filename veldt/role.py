# SPDX-License-Identifier: Apache-2.0
"""Parts and roles: what a topology is made of.

A part is a dataclass of settings, channel ends and other parts. Where a node runs, the backend
copies its role, replaces every end, also of those inside parts, by a live port, and opens the role;
a role opens its parts. Before that a part is a plain value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

if TYPE_CHECKING:
    from veldt.context import NodeContext

Arrays = dict[str, np.ndarray]
T = TypeVar("T")


def entries_below(prefix: str, arrays: Arrays) -> Arrays:
    """The arrays whose name begins with `prefix`, without it."""
    found = arrays.items()
    return {name.removeprefix(prefix): array for name, array in found if name.startswith(prefix)}


class Part:
    """Base of all parts; subclasses are dataclasses."""


@dataclass(eq=False)
class Role(Part):
    """Does one unit of work at a time, wherever it runs.

    A backend calls `open` once, then `step` repeatedly; between two steps the role can be saved."""

    restartable: ClassVar[bool] = True
    """Whether a successor may take the place of one that died."""
    niceness: ClassVar[int] = 0

    def open(self, context: NodeContext) -> None:
        """Allocate, load and connect."""

    def step(self) -> bool:
        """Do one unit of work; False when there is nothing to do now. Never blocks or sleeps."""
        raise NotImplementedError

    def state(self) -> Arrays:
        """All state that a restart needs, as arrays."""
        return {}

    def load_state(self, state: Arrays) -> None:
        """Continue from what `state` of the same role returned."""

    def close(self) -> None:
        """Release resources held outside Python."""

    @property
    def max_sleep_seconds(self) -> float:
        """Seconds this role may sleep when no channel wakes it."""
        return float("inf")

    def device(self) -> str:
        """The device it computes on: "cpu" or "cuda"."""
        return "cpu"


class EndLike:
    """Base of channel ends, which are replaced when a part is bound."""


def bound(part: T, open_end: Callable[[EndLike], object]) -> T:
    """A copy in which every end, also inside parts and lists, is what `open_end` returns."""
    return _bound(part, open_end)  # type: ignore[return-value]


def _bound(value: object, open_end: Callable[[EndLike], object]) -> object:
    if isinstance(value, EndLike):
        return open_end(value)
    if isinstance(value, Part):
        entries = [entry.name for entry in fields(value) if entry.init]  # type: ignore[arg-type]
        return replace(value, **{n: _bound(getattr(value, n), open_end) for n in entries})  # type: ignore[type-var]
    if type(value) in (list, tuple):
        return type(value)(_bound(item, open_end) for item in value)  # type: ignore[call-arg,attr-defined]
    return value


def leaves_of(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Every setting and end of a part and of its parts, with the name of its field."""
    if isinstance(value, Part):
        for entry in fields(value):  # type: ignore[arg-type]
            yield from leaves_of(getattr(value, entry.name), entry.name)
    elif type(value) in (list, tuple):
        for item in value:  # type: ignore[attr-defined]
            yield from leaves_of(item, name)
    else:
        yield name, value
