# SPDX-License-Identifier: Apache-2.0
"""Numbers from an environment's info: metrics of ended episodes.

A single environment returns them in a plain dict; a vector environment in arrays, with or without
a mask `_name`, in `final_info` where it resets within the step; older ones in a list of dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from veldt.types import ACTION_MASK

EPISODE_INFO = "veldt.episode_info"
"""Entry of the info of copies that Veldt makes: {row: {name: number}}, of one copy {name: number},
only where an episode has ended."""
ABORTED = "veldt.aborted"
"""Entry of the info of copies that failed in this step; of a vector of them, their numbers."""
_FINAL = "final_info"
_LEFT_OUT = {
    *("final_obs", ACTION_MASK, EPISODE_INFO, ABORTED, _FINAL),
    *("env_id", "players", "elapsed_step", "frame_number", "lives", "reward", "terminated"),
    *("TimeLimit.truncated", "episode/r", "episode/l", "episode/t"),
}
"""Entries that are no metrics, or are recorded elsewhere."""

Found = dict[str, list[float]]


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in one environment's info, those of a dict in it as "dict/name"."""
    found = {}
    for name, value in _flat(info):
        number = _number(value)
        if number is not None:
            found[name] = number
    return found


def read_episode_info(info: Mapping[str, Any], over: np.ndarray) -> Found:
    """The numbers of the episodes that are `over`, bool [E], by name."""
    rows: dict[int, dict[str, float]] | None = info.get(EPISODE_INFO)
    if rows is not None:
        return _joined(numbers for row, numbers in rows.items() if over[row])
    final = info.get(_FINAL)
    if isinstance(final, np.ndarray | list | tuple):
        ended = (final[row] for row in np.flatnonzero(over))
        return _joined(numbers_of(one) for one in ended if isinstance(one, Mapping))
    found: Found = {}
    for source in (info if final is None else {"episode": info.get("episode", {})}, final or {}):
        for name, column, given in _columns(source, len(over)):
            values = _values(column, over if given is None else over & given)
            if values:
                found[name] = values
    return found


def _joined(episodes: Iterator[dict[str, float]]) -> Found:
    found: Found = {}
    for numbers in episodes:
        for name, number in numbers.items():
            found.setdefault(name, []).append(number)
    return found


def _flat(info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries, and entries of nested dicts, by name."""
    for key, value in info.items():
        if not isinstance(key, str) or key.startswith("_") or key in _LEFT_OUT:
            continue
        if not isinstance(value, Mapping):
            yield key, value
            continue
        for inner, entry in value.items():
            name = f"{key}/{inner}"
            if not str(inner).startswith("_") and name not in _LEFT_OUT:
                yield name, entry


def _columns(
    info: Mapping[str, Any], num_envs: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Arrays with an entry per environment, and the mask of present entries."""
    for name, value in _flat(info):
        if not isinstance(value, np.ndarray) or value.shape != (num_envs,):
            continue
        outer, _, inner = name.partition("/")
        given = info[outer].get("_" + inner) if inner and outer in info else None
        if given is None:
            given = info.get("_" + outer)
        if not isinstance(given, np.ndarray) or given.shape != (num_envs,):
            given = None
        yield name, value, None if given is None else given.astype(bool)


def _values(column: np.ndarray, rows: np.ndarray) -> list[float]:
    if column.dtype.kind not in "biufO":
        return []
    numbers = map(_number, column[rows].tolist())
    return [number for number in numbers if number is not None]


def _number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not isinstance(value, bool | int | float | np.bool_ | np.number):
        return None
    try:
        number = float(value)
    except (TypeError, OverflowError):  # complex numbers, and integers beyond all bounds
        return None
    return number if math.isfinite(number) else None
