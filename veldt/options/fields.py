# SPDX-License-Identifier: Apache-2.0
"""Nested options as a flat table: a Config holds groups, users name fields.

`Config(optimizer=OptimizerOptions(learning_rate=...))` is `--learning-rate` on the command line and
`learning_rate=` in Python: a field's own name is enough, so no two groups of a Config share one.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from veldt.errors import ConfigurationError, did_you_mean
from veldt.options.checked import kinds_of, unfit

C = TypeVar("C")


@dataclass(frozen=True)
class Leaf:
    """One option: where it lies, what it may be, and the line under it."""

    name: str
    kind: Any
    entry: Field[Any]
    path: tuple[str, ...]
    """The groups it lies in, from the outside."""
    owner: type
    """The group itself."""

    @property
    def text(self) -> str:
        """The string literal under the field; the source is read when somebody asks for help."""
        return _documentation(self.owner).get(self.name, "")


_LEAVES: dict[type, Mapping[str, Leaf]] = {}
"""Of the classes that were asked for: every preset asks for its architecture's."""


def leaves(config: type) -> Mapping[str, Leaf]:
    """Every option of a dataclass and of the groups in it, by name."""
    if config not in _LEAVES:
        found: dict[str, Leaf] = {}
        _collect(config, (), found)
        _LEAVES[config] = MappingProxyType(found)
    return _LEAVES[config]


def _collect(config: type, path: tuple[str, ...], found: dict[str, Leaf]) -> None:
    kinds = kinds_of(config)
    for entry in fields(config):
        kind = kinds[entry.name]
        if is_dataclass(kind) and isinstance(kind, type):
            _collect(kind, (*path, entry.name), found)
            continue
        if entry.name in found:
            raise TypeError(f"two groups of one Config have a field {entry.name}")
        found[entry.name] = Leaf(entry.name, kind, entry, path, config)


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
    for name, leaf in leaves(type(config)).items():
        group = config
        for step in leaf.path:
            group = getattr(group, step)
        values[name] = getattr(group, name)
    return values


def changed(config: C, **values: object) -> C:
    """The same options with other values, given by the names of the fields."""
    return with_values(config, values)


def with_values(config: C, values: Mapping[str, object]) -> C:
    """The same options with other values, wherever in the groups they lie."""
    known = leaves(type(config))
    for name in values:
        if name not in known:
            raise ConfigurationError(f"unknown option '{name}'; {did_you_mean(name, known)}")
    own = {name: value for name, value in values.items() if not known[name].path}
    for group in {known[name].path[0] for name in values if known[name].path}:
        inner = {n: v for n, v in values.items() if known[n].path and known[n].path[0] == group}
        own[group] = with_values(getattr(config, group), inner)
    return replace(config, **own)  # type: ignore[type-var]


def check_kinds(config: type, values: Mapping[str, Any]) -> None:
    """Refuse values read from a file that the option of this name cannot have."""
    known = leaves(config)
    for name, value in values.items():
        trouble = unfit(value, known[name].kind) if name in known else None
        if trouble:
            raise ConfigurationError(f"{name} {trouble}")
