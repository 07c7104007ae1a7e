# SPDX-License-Identifier: Apache-2.0
"""Presets: named values of an architecture's options, as tables of one TOML file.

They are data, so that an architecture's file shows its structure and its constants can be read
beside each other. A table may be `like` an earlier one; "none" is the option's None.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from veldt.options.fields import with_values

C = TypeVar("C")


def presets(module: str, defaults: C) -> dict[str, C]:
    """The tables in presets/NAME.toml beside the module NAME.py (its `__file__`), as options; what
    a table does not name is as in `defaults`. A module without such a file, such as a user's copy
    of one of ours, has its defaults as "control"."""
    file = Path(module).parent / "presets" / f"{Path(module).stem}.toml"
    if not file.exists():
        return {"control": defaults}
    found: dict[str, C] = {}
    for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
        like = table.pop("like", None)
        values = {option: None if value == "none" else value for option, value in table.items()}
        found[name] = with_values(found[like] if like else defaults, values)
    return found
