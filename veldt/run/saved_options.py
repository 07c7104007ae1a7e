# SPDX-License-Identifier: Apache-2.0
"""What a run was started with, read back from its directory."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import check_kinds
from veldt.run.trust import check_code

_COMMON = {entry.name for entry in fields(RunOptions)}


def saved_options(
    run_dir: Path, trust_code: bool = False
) -> tuple[str, RunOptions, dict[str, Any]]:
    """Architecture, common options and own fields of a run, from its config.json. Refuses files of
    code that are not what the run was trained with, unless they are trusted."""
    try:
        stored = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        if not trust_code:
            check_code(run_dir / "config.json", stored)
        check_kinds(RunOptions, stored["options"])
        if unknown := set(stored["options"]) - _COMMON:
            raise ConfigurationError(
                f"another version of Veldt wrote {', '.join(sorted(unknown))}; use that version"
            )
        options = RunOptions(**stored["options"])
        options = replace(options, trackers=tuple(options.trackers))
        check_kinds(architectures.load(stored["architecture"]).config, stored["config"])
        own = {k: tuple(v) if isinstance(v, list) else v for k, v in stored["config"].items()}
        return stored["architecture"], options, own
    except ConfigurationError as error:
        raise ConfigurationError(f"{run_dir / 'config.json'} cannot be used: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{run_dir} is not a run directory ({type(error).__name__}: {error}); give the folder"
            " that holds config.json"
        ) from error
