# SPDX-License-Identifier: Apache-2.0
"""Nested options as one flat table of options, and their values as command-line text.

`Config(optimizer=OptimizerOptions(learning_rate=...))` is `--learning-rate` on the command line and
`learning_rate=` in Python, so no two parts of a Config share a field name. Fields of a Group, and
parts that derive from KeyedOptions, are keys of one option instead.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import (
    Field,
    asdict,
    dataclass,
    field,
    fields,
    is_dataclass,
    make_dataclass,
    replace,
)
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from veldt.errors import ConfigurationError, did_you_mean
from veldt.options.checked import KeyedOptions, is_keyed, type_hints_of, validation_error
from veldt.options.groups import Group
from veldt.options.old_spellings import INSTEAD, RENAMED

C = TypeVar("C")
_OPTIONS: dict[type, Mapping[str, OptionField]] = {}
_LEAVES: dict[type, Mapping[str, OptionField]] = {}


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
    group: Group | None = None
    """The group that the field is a key of."""

    @property
    def text(self) -> str:
        """The string literal under the field, read from the source; that of the class for keys."""
        text = _documentation(self.owner).get(self.name, "")
        return text or (inspect.getdoc(self.kind) or "" if is_keyed(self.kind) else "")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return str(self.entry.metadata.get("flag") or "--" + self.name.replace("_", "-"))

    @property
    def keys(self) -> Mapping[str, OptionField]:
        """The keys of an option that has some."""
        return option_fields(self.kind) if is_keyed(self.kind) else {}


def option_fields(config: type) -> Mapping[str, OptionField]:
    """Every option of a dataclass and of its parts, by name; the fields of a Group as one option.

    The options of a group's generated type are its keys."""
    if config in _OPTIONS:  # every preset needs the options of its Config
        return _OPTIONS[config]
    found: dict[str, OptionField] = {}
    groups: dict[Group, dict[str, OptionField]] = {}
    for name, option in _leaves(config).items():
        if option.group is None or issubclass(config, KeyedOptions):
            found[name] = option
        else:
            groups.setdefault(option.group, {})[name] = option
    for group, keys in groups.items():
        members = [
            (
                name,
                key.kind,
                field(default=key.entry.default, default_factory=key.entry.default_factory),
            )
            for name, key in keys.items()
        ]
        text = {"__doc__": group.text}
        kind = make_dataclass(
            group.name, members, bases=(KeyedOptions,), namespace=text, frozen=True
        )
        _LEAVES[kind] = keys
        path = next(iter(keys.values())).path
        found[group.name] = OptionField(
            group.name, kind, field(default_factory=kind), path, KeyedOptions
        )
    _OPTIONS[config] = MappingProxyType(found)
    return _OPTIONS[config]


def _leaves(config: type) -> Mapping[str, OptionField]:
    """Every field of a dataclass and of its parts, by name."""
    if config in _LEAVES:
        return _LEAVES[config]
    found: dict[str, OptionField] = {}
    for entry in fields(config):
        kind, group = _without_group(type_hints_of(config)[entry.name])
        own = {entry.name: OptionField(entry.name, kind, entry, (), config, group)}
        if is_dataclass(kind) and isinstance(kind, type) and not is_keyed(kind):
            own = {
                name: replace(option, path=(entry.name, *option.path))
                for name, option in _leaves(kind).items()
            }
        if twice := found.keys() & own.keys():
            raise TypeError(f"two groups of one Config have a field {min(twice)}")
        found |= own
    _LEAVES[config] = found
    return found


def _without_group(kind: Any) -> tuple[Any, Group | None]:
    """A field's type without the mark of its group, and the group."""
    if get_origin(kind) is not Annotated:
        return kind, None
    plain, *marks = get_args(kind)
    group = next((mark for mark in marks if isinstance(mark, Group)), None)
    rules = [mark for mark in marks if mark is not group]
    return Annotated[(plain, *rules)] if rules else plain, group


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
    values, found = flat_keys(config), {}
    for name, option in option_fields(type(config)).items():
        is_generated = name not in values
        keys = {key: values[key] for key in option.keys} if is_generated else {}
        found[name] = option.kind(**keys) if is_generated else values[name]
    return found


def flat_keys(config: object) -> dict[str, Any]:
    """Every field's value, by its own name also where it is a key of an option."""
    values: dict[str, Any] = {}
    for name, leaf in _leaves(type(config)).items():
        part = config
        for step in leaf.path:
            part = getattr(part, step)
        values[name] = getattr(part, name)
        if isinstance(values[name], KeyedOptions):
            values |= vars(values[name])
    return values


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with KeyedOptions as dicts, for JSON."""
    return {
        name: asdict(value) if isinstance(value, KeyedOptions) else value
        for name, value in values.items()
    }


def changed(config: C, **values: object) -> C:
    """The same options with other values, given by the names of options or of fields."""
    known = {**_leaves(type(config)), **option_fields(type(config))}
    return _with_leaves(config, _by_field(config, values, known))


def with_values(config: C, values: Mapping[str, object]) -> C:
    """The same options with other values; keyed options keep the keys that are not given."""
    return _with_leaves(config, _by_field(config, values, option_fields(type(config))))


def _by_field(
    config: object, values: Mapping[str, object], known: Mapping[str, OptionField]
) -> dict[str, Any]:
    """The values by field, where those of a group are given as keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ConfigurationError(unknown_option(name, known, value=value))
        kind = known[name].kind
        if not is_keyed(kind):
            found[name] = value
        elif trouble := validation_error(value, kind):
            raise ConfigurationError(f"{name} {trouble}")
        elif name in _leaves(type(config)):
            found[name] = getattr(config, name).merged(value)
        else:
            whole = kind.of(value)
            given = value if isinstance(value, Mapping) else known[name].keys
            found |= {key: getattr(whole, key) for key in given}
    return found


def _with_leaves(config: C, values: Mapping[str, object]) -> C:
    paths = {name: _leaves(type(config))[name].path for name in values}
    own = {name: value for name, value in values.items() if not paths[name]}
    for part in {path[0] for path in paths.values() if path}:
        inner = {name: value for name, value in values.items() if paths[name][:1] == (part,)}
        own[part] = _with_leaves(getattr(config, part), inner)
    return replace(config, **own)  # type: ignore[type-var]


def unknown_option(
    given: str,
    known: Mapping[str, OptionField],
    names: Iterable[str] | None = None,
    otherwise: str | None = None,
    value: object = "VALUE",
) -> str:
    """A message about an option that does not exist: its new spelling, or the nearest name.

    Args:
        given: the option as the user spelled it.
        known: the options that exist, one of which it may be a key of.
        names: spellings to suggest; by default the names of `known`.
        otherwise: the remedy if none of them is near.
        value: the value that was given for it.
    """
    name = given.lstrip("-").replace("-", "_")
    if name.startswith("no_"):
        name, value = name.removeprefix("no_"), "false"
    key = RENAMED.get(name, name)
    for option in known.values():
        if key in option.keys:
            example = f"{option.flag} {format_keys({key: value})}"
            return f"{given} is now a key of {option.name}: {example}"
    if name in INSTEAD:
        return f"{given} was removed; {INSTEAD[name]}"
    return f"unknown option '{given}'; {did_you_mean(given, names or known, otherwise)}"


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


def _pairs(text: str, comma: str = ",") -> Iterator[tuple[str, str]]:
    for part in filter(None, re.split(comma, text)):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise ArgumentTypeError(f"'{part}' is not key=value")
        yield key, value


def _read_keys(kind: type[KeyedOptions], text: str) -> dict[str, Any]:
    """KEY=VALUE,... with each value parsed by the type of its key."""
    known, found = option_fields(kind), {}
    for key, value in _pairs(text, r",(?=[\w\s]+=)"):  # policies=wolf=a,b;sheep=c is one
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
