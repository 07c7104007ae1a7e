# SPDX-License-Identifier: Apache-2.0
"""Nested options as a flat table: a Config has groups, users name fields.

`Config(optimizer=OptimizerOptions(learning_rate=...))` is `--learning-rate` on the command line and
`learning_rate=` in Python, so no two groups of a Config share a field name. Groups that derive from
KeyedOptions are one option with keys instead.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from veldt.errors import ConfigurationError
from veldt.options.checked import KeyedOptions, is_keyed, type_hints_of, validation_error
from veldt.options.old_spellings import unknown_option

C = TypeVar("C")


@dataclass(frozen=True)
class OptionField:
    """One option: its group, its type and its help text."""

    name: str
    kind: Any
    entry: Field[Any]
    path: tuple[str, ...]
    """The groups it is in, outermost first."""
    owner: type
    """The group itself."""

    @property
    def text(self) -> str:
        """The string literal under the field, read from the source."""
        return _documentation(self.owner).get(self.name, "")


_FIELDS: dict[type, Mapping[str, OptionField]] = {}
"""A cache: every preset needs the fields of its Config."""


def option_fields(config: type) -> Mapping[str, OptionField]:
    """Every option of a dataclass and of the groups in it, by name."""
    if config not in _FIELDS:
        found: dict[str, OptionField] = {}
        _collect(config, (), found)
        _FIELDS[config] = MappingProxyType(found)
    return _FIELDS[config]


def _collect(config: type, path: tuple[str, ...], found: dict[str, OptionField]) -> None:
    kinds = type_hints_of(config)
    for entry in fields(config):
        kind = kinds[entry.name]
        if is_dataclass(kind) and isinstance(kind, type) and not is_keyed(kind):
            _collect(kind, (*path, entry.name), found)
            continue
        if entry.name in found:
            raise TypeError(f"two groups of one Config have a field {entry.name}")
        found[entry.name] = OptionField(entry.name, kind, entry, path, config)


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
            documented = isinstance(following, ast.Expr) and isinstance(
                following.value, ast.Constant
            )
            if isinstance(statement, ast.AnnAssign) and documented:
                assert isinstance(statement.target, ast.Name)
                text = following.value.value  # type: ignore[attr-defined]
                found[statement.target.id] = " ".join(str(text).split())
    return found


def flat(config: object) -> dict[str, Any]:
    """Every option's value, by name."""
    values: dict[str, Any] = {}
    for name, leaf in option_fields(type(config)).items():
        group = config
        for step in leaf.path:
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
    """The same options with other values, in whatever group; keyed options keep other keys."""
    known = option_fields(type(config))
    for name in values:
        if name not in known:
            raise ConfigurationError(unknown_option(name, known))
    own = {}
    for name in values:
        if not known[name].path:
            before = getattr(config, name)
            is_merged = isinstance(before, KeyedOptions) and not validation_error(
                values[name], known[name].kind
            )
            own[name] = before.merged(values[name]) if is_merged else values[name]
    for group in {known[name].path[0] for name in values if known[name].path}:
        inner = {n: v for n, v in values.items() if known[n].path and known[n].path[0] == group}
        own[group] = with_values(getattr(config, group), inner)
    return replace(config, **own)  # type: ignore[type-var]


def check_kinds(config: type, values: Mapping[str, Any]) -> None:
    """Refuse values read from a file that the option of this name cannot have."""
    known = option_fields(config)
    for name, value in values.items():
        trouble = validation_error(value, known[name].kind) if name in known else None
        if trouble:
            raise ConfigurationError(f"{name} {trouble}")
