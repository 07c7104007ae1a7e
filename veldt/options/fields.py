# SPDX-License-Identifier: Apache-2.0
"""Nested options as one flat table of fields, and their values as command-line text.

`Config(optimizer=OptimizerOptions(learning_rate=...))` is `--learning-rate` on the command line and
`learning_rate=` in Python, so no two groups of a Config share a field name. Groups that derive from
KeyedOptions are one option with keys instead.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, asdict, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from veldt.errors import ConfigurationError, did_you_mean
from veldt.options.checked import KeyedOptions, is_keyed, type_hints_of, validation_error
from veldt.options.old_spellings import unknown_option

C = TypeVar("C")
_FIELDS: dict[type, Mapping[str, OptionField]] = {}


@dataclass(frozen=True)
class OptionField:
    """One option: its type, its group and its help text."""

    name: str
    kind: Any
    entry: Field[Any]
    path: tuple[str, ...]
    """Names of the groups that contain it, outermost first."""
    owner: type
    """The dataclass of the innermost group."""

    @property
    def text(self) -> str:
        """The string literal under the field, read from the source."""
        return _documentation(self.owner).get(self.name, "")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return str(self.entry.metadata.get("flag") or "--" + self.name.replace("_", "-"))


def option_fields(config: type) -> Mapping[str, OptionField]:
    """Every option of a dataclass and of the groups in it, by name."""
    if config in _FIELDS:  # every preset needs the fields of its Config
        return _FIELDS[config]
    found: dict[str, OptionField] = {}
    for entry in fields(config):
        kind = type_hints_of(config)[entry.name]
        own = {entry.name: OptionField(entry.name, kind, entry, (), config)}
        if is_dataclass(kind) and isinstance(kind, type) and not is_keyed(kind):
            own = {
                name: replace(option, path=(entry.name, *option.path))
                for name, option in option_fields(kind).items()
            }
        if twice := found.keys() & own.keys():
            raise TypeError(f"two groups of one Config have a field {min(twice)}")
        found |= own
    _FIELDS[config] = MappingProxyType(found)
    return _FIELDS[config]


@cache
def _documentation(config: type) -> dict[str, str]:
    """Field name -> the string literal under it, in the class or the nearest base that has one."""
    found: dict[str, str] = {}
    for parent in reversed(config.__mro__):
        if parent is object:
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(text)):
                    found[name] = " ".join(str(text).split())
    return found


def flat(config: object) -> dict[str, Any]:
    """Every option's value, by name."""
    values: dict[str, Any] = {}
    for name, option in option_fields(type(config)).items():
        group = config
        for step in option.path:
            group = getattr(group, step)
        values[name] = getattr(group, name)
    return values


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with KeyedOptions as dicts, for JSON."""
    return {
        name: asdict(value) if isinstance(value, KeyedOptions) else value
        for name, value in values.items()
    }


def changed(config: C, **values: object) -> C:
    """The same options with other values, given by the names of the fields."""
    return with_values(config, values)


def with_values(config: C, values: Mapping[str, object]) -> C:
    """The same options with other values; keyed options keep the keys that are not given."""
    known = option_fields(type(config))
    for name in values:
        if name not in known:
            raise ConfigurationError(unknown_option(name, known))
    own = {name: value for name, value in values.items() if not known[name].path}
    for name, value in own.items():
        before = getattr(config, name)
        if isinstance(before, KeyedOptions) and validation_error(value, known[name].kind) is None:
            own[name] = before.merged(value)
    for group in {known[name].path[0] for name in values if known[name].path}:
        inner = {n: v for n, v in values.items() if known[n].path and known[n].path[0] == group}
        own[group] = with_values(getattr(config, group), inner)
    return replace(config, **own)  # type: ignore[type-var]


def check_kinds(config: type, values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for values from a file that their options cannot have."""
    known = option_fields(config)
    for name, value in values.items():
        trouble = validation_error(value, known[name].kind) if name in known else None
        if trouble:
            raise ConfigurationError(f"{name} {trouble}")


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


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise ArgumentTypeError(f"'{part}' is not key=value")
        yield key, value


def _read_keys(kind: type[KeyedOptions], text: str) -> dict[str, Any]:
    """KEY=VALUE,... with each value parsed by the type of its key."""
    known, found = option_fields(kind), {}
    for key, value in _pairs(text):
        if key not in known:
            raise ArgumentTypeError(f"'{key}' is no key; {did_you_mean(key, known)}")
        try:
            found[key] = reader(known[key].kind, "x")[0](value)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{key}: {error}") from None
    return found


def whole_number(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (value := float(text)).is_integer():  # 1e6 is a common way to write a million
            return int(value)
    raise ArgumentTypeError(f"'{text}' is not a whole number")


def _number(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise ArgumentTypeError(f"'{text}' is not a finite number")


def read_mapping(text: str) -> dict[str, Any]:
    """key=value,key=value with numbers, true, false and none read as such."""
    return {key: _value(value) for key, value in _pairs(text)}


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text
