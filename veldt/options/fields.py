# SPDX-License-Identifier: Apache-2.0
"""What a dataclass of options says about itself: the line under each field, and what it may be."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from veldt.errors import ConfigurationError


def field_documentation(config: type) -> dict[str, str]:
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


def check_kinds(config: type, values: Mapping[str, Any]) -> None:
    """Refuse values read from a file whose type is not that of the field of this name."""
    kinds = get_type_hints(config)
    for name, value in values.items():
        if name in kinds and not _is_of(value, kinds[name]):
            raise ConfigurationError(f"{name} is {value!r}, which this option cannot be")


def _is_of(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_is_of(value, member) for member in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        element = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(_is_of(each, element) for each in value)
    if kind is types.NoneType:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    found = origin or kind
    return isinstance(found, type) and isinstance(value, found)
