# SPDX-License-Identifier: Apache-2.0
"""Presets: named values of an architecture's options, as tables of one TOML file.

They are data, so that an architecture's file shows its structure and the constants of presets can
be compared. A table may be `like` an earlier one; "none" stands for None.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from veldt.errors import ConfigurationError
from veldt.options.fields import with_values

C = TypeVar("C")


_FOLDER = Path(__file__).parent.parent / "architectures" / "presets"


def presets(name: str | Path, defaults: C) -> dict[str, C]:
    """Read the presets of an architecture.

    Args:
        name: name of an architecture of Veldt, or path of a TOML file.
        defaults: values of the options that a table does not name.

    Returns:
        The options of each preset, by its name.
    """
    file = name if isinstance(name, Path) else _FOLDER / f"{name}.toml"
    if not file.is_file():
        published = ", ".join(sorted(path.stem for path in _FOLDER.glob("*.toml")))
        raise ConfigurationError(
            f"there are no presets {name}; name the system that yours was copied from"
            f" ({published}), or the path of a TOML file of your own"
        )
    found: dict[str, C] = {}
    for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
        like = table.pop("like", None)
        found[name] = with_values(found[like] if like else defaults, _with_none(table))
    return found


def _with_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _with_none(value) if isinstance(value, dict) else None if value == "none" else value
        for name, value in table.items()
    }
