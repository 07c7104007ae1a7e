# SPDX-License-Identifier: Apache-2.0
"""Values of options as words of a command line: how they are read, and written to be read again."""

from __future__ import annotations

import math
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from veldt.options.fields import Leaf


def flag_of(leaf: Leaf) -> str:
    """The option on the command line: --name, unless its field says otherwise."""
    return str(leaf.entry.metadata.get("flag") or "--" + leaf.name.replace("_", "-"))


def words(leaf: Leaf, value: object) -> list[str] | None:
    """What gives the option this value on the command line; None where no words can."""
    flag = flag_of(leaf)
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    text = written(value)
    try:
        if reader(leaf.kind)[0](text) != value:
            return None
    except (ArgumentTypeError, ValueError):
        return None
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def written(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={written(entry)}" for key, entry in value.items())
    return "none" if value is None else str(value)


def reader(kind: Any) -> tuple[Callable[[str], Any], str]:
    """The function that reads a value of this type, and what the help calls such a value."""
    if get_origin(kind) is Annotated:
        return reader(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not types.NoneType]
        # A callable can be given from Python only; on the command line its name stands for it.
        members = [member for member in members if get_origin(member) is not Callable] or [str]
        read, metavar = reader(members[0])
        if types.NoneType in get_args(kind):
            return (lambda text: None if text == "none" else read(text)), metavar
        return read, metavar
    if get_origin(kind) is Literal:
        return str, "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        read, metavar = reader(get_args(kind)[0])
        return (lambda text: tuple(read(part) for part in text.split(","))), f"{metavar},..."
    if get_origin(kind) is dict or kind is dict:
        return read_mapping, "KEY=VALUE,..."
    return {int: (whole_number, "N"), float: (_number, "X")}.get(kind, (str, "TEXT"))


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)  # 1e6 is how people write a million
    except ValueError:
        value = 0.5
    if not value.is_integer():
        raise ArgumentTypeError(f"'{text}' is not a whole number")
    return int(value)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not math.isfinite(value):
        raise ArgumentTypeError(f"'{text}' is not a finite number")
    return value


def read_mapping(text: str) -> dict[str, Any]:
    """key=value,key=value with numbers, true, false and none read as such."""
    pairs = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ArgumentTypeError(f"'{part}' is not key=value")
        pairs[key.strip()] = _value(value.strip())
    return pairs


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
