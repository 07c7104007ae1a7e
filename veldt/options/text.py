# SPDX-License-Identifier: Apache-2.0
"""Values of options as command-line text: parsing and formatting."""

from __future__ import annotations

import math
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from veldt.errors import did_you_mean
from veldt.options.checked import KeyedOptions, is_keyed
from veldt.options.fields import OptionField, option_fields


def flag_of(leaf: OptionField) -> str:
    """The option on the command line: --name, unless its field says otherwise."""
    return str(leaf.entry.metadata.get("flag") or "--" + leaf.name.replace("_", "-"))


def cli_args(leaf: OptionField, value: object) -> list[str] | None:
    """What gives the option this value on the command line; None where no text can."""
    flag = flag_of(leaf)
    if leaf.kind is bool:
        return [flag if value else "--no-" + flag.removeprefix("--")]
    text = format_value(value)
    try:
        found = reader(leaf.kind)[0](text)
        if (leaf.kind.of(found) if is_keyed(leaf.kind) else found) != value:
            return None
    except (ArgumentTypeError, ValueError):
        return None
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def format_value(value: object) -> str:
    """The text that `reader` parses to this value."""
    if isinstance(value, tuple):
        return ",".join(map(format_value, value))
    if isinstance(value, KeyedOptions):
        values = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        changed = {n: v for n, v in values.items() if v != getattr(type(value)(), n)}
        return format_keys(changed)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={format_value(entry)}" for key, entry in value.items())
    return "none" if value is None else str(value)


def format_keys(values: Mapping[str, object]) -> str:
    """KEY=VALUE,... where tuples are written as 64x64, because commas separate keys."""

    def text(value: object) -> str:
        return "x".join(map(str, value)) if isinstance(value, tuple) else format_value(value)

    return ",".join(f"{key}={text(value)}" for key, value in values.items())


def reader(kind: Any, separator: str = ",") -> tuple[Callable[[str], Any], str]:
    """The function that parses a value of this type, and its name in help texts."""
    if is_keyed(kind):
        return partial(_read_keys, kind), "KEY=VALUE,..."
    if get_origin(kind) is Annotated:
        return reader(get_args(kind)[0], separator)
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not types.NoneType]
        # A callable can be given from Python only; on the command line its name stands for it.
        members = [member for member in members if get_origin(member) is not Callable] or [str]
        read, metavar = reader(members[-1], separator)
        if bool in members:
            return (lambda text: _SWITCHES[text] if text in _SWITCHES else read(text)), metavar
        if types.NoneType in get_args(kind):
            return (lambda text: None if text == "none" else read(text)), metavar
        return read, metavar
    if get_origin(kind) is Literal:
        return str, "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        read, metavar = reader(get_args(kind)[0], separator)
        return (lambda text: tuple(map(read, text.split(separator)))), f"{metavar},..."
    if get_origin(kind) is dict or kind is dict:
        return read_mapping, "KEY=VALUE,..."
    known = {int: (whole_number, "N"), float: (_number, "X"), bool: (_switch, "true|false")}
    return known.get(kind, (str, "TEXT"))


_SWITCHES = {"true": True, "True": True, "on": True, "false": False, "False": False, "off": False}


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ArgumentTypeError(f"'{text}' is not true or false")
    return _SWITCHES[text.lower()]


def _read_keys(kind: type[KeyedOptions], text: str) -> dict[str, Any]:
    """KEY=VALUE,... with each value parsed by the type of its key."""
    known, found = option_fields(kind), {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ArgumentTypeError(f"'{part}' is not key=value")
        if key not in known:
            raise ArgumentTypeError(f"'{key}' is no key; {did_you_mean(key, known)}")
        try:
            found[key] = reader(known[key].kind, "x")[0](value)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{key}: {error}") from None
    return found


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
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
