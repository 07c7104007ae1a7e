# SPDX-License-Identifier: Apache-2.0
"""The directory of one run, and whether a command continues the run that it holds.

A command whose run directory holds a run continues it, so that a scheduler may repeat the same
command after each preemption. Importing this module does not import PyTorch.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.checkpoints.format import DAMAGE, META
from veldt.checkpoints.store import ordered_names, step_of
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.options import RunOptions
from veldt.run.config_files import CONFIG_FILE, LIMITS, RESUMABLE, check_code
from veldt.telemetry.log_files import log_to_stderr
from veldt.telemetry.result import RunResult, dumps

if TYPE_CHECKING:
    from veldt.run.plan import Plan

CHECKPOINTS, RESULT_FILE = "checkpoints", "result.json"
_MAY_DIFFER = RESUMABLE | {"run_dir", "preset"}
_SIZES = ("num_actors", "envs_per_actor")
_REACHED = ("env_steps", "seconds", "target")


class RunDirectory:
    """Holds a run directory exclusively; the kernel releases it when this process ends."""

    def __init__(
        self,
        path: str | None,
        architecture: str,
        env: str,
        resume: bool = False,
        base: Path | None = None,
        local: Path | None = None,
    ) -> None:
        """`base` is where a relative path begins; `local` has the files if `path` is a URL."""
        base = base or Path.cwd()
        given = Path(path) if path else _default_path(base, architecture, env)
        self.shown = path or str(given)
        """The path as the user gave it."""
        self.path = local or base / given
        self._lock = ExitStack()
        self._lock.enter_context(held_folder(self.path, "run", "--run-dir"))
        if not resume and (self.path / CONFIG_FILE).exists():
            self.close()
            raise ConfigurationError(
                f"{self.path} already holds a run; choose another --run-dir, or resume it with"
                " 'veldt resume'"
            )

    def write_config(self, config: dict[str, Any]) -> None:
        try:
            write_atomically(self.path / CONFIG_FILE, dumps(config) + "\n", durable=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to {self.path} ({error.strerror}); choose another --run-dir"
            ) from error

    def close(self) -> None:
        self._lock.close()


def _default_path(base: Path, architecture: str, env: str) -> Path:
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-")
    name = f"{architecture}-{tidy}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(Path("runs") / name for name in names if not (base / "runs" / name).exists())


def run_to_continue(path: Path | None, shown: str | None) -> dict[str, Any] | None:
    """config.json of the run in this directory; None: start a new one."""
    if path is None or not (path / CONFIG_FILE).exists():
        return None
    if not _has_checkpoint(path):
        _discard(path)
        log_to_stderr(f"{shown} was begun and left no checkpoint; it begins anew")
        return None
    try:
        stored: dict[str, Any] = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        if not isinstance(stored["options"], dict) or not isinstance(stored["config"], dict):
            raise TypeError("it does not describe a run")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path / CONFIG_FILE} cannot be read ({type(error).__name__}: {error}); choose"
            " another --run-dir"
        ) from error
    return stored


def _has_checkpoint(path: Path) -> bool:
    """Whether a checkpoint can be resumed from; a damaged one counts, and is refused later."""
    for name in ordered_names(path / CHECKPOINTS):
        try:
            if json.loads((path / CHECKPOINTS / name / META).read_bytes())["complete"]:
                return True
        except DAMAGE:
            return True
    return False


def _discard(path: Path) -> None:
    """Make room for a new run where one ended before its first checkpoint."""
    with held_folder(path, "run", "--run-dir"):
        for name in ordered_names(path / CHECKPOINTS):  # weights only, of a run that failed
            os.rename(path / CHECKPOINTS / name, path / CHECKPOINTS / f".tmp-{name}")
        (path / RESULT_FILE).unlink(missing_ok=True)
        (path / CONFIG_FILE).unlink()


def with_saved_sizes(options: RunOptions, stored: dict[str, Any]) -> RunOptions:
    """The options with the sizes and the preset that were chosen on the run's first machine."""
    saved = {name: stored["options"].get(name) for name in _SIZES if vars(options)[name] is None}
    sizes: dict[str, Any] = {name: n for name, n in saved.items() if type(n) is int}
    if options.preset == "auto":
        sizes["preset"] = stored.get("chosen", {}).get("preset", "auto")
    return replace(options, **sizes)


def check_same_options(path: Path, plan: Plan, stored: dict[str, Any]) -> None:
    """Refuse to continue a run of other options, naming the first that differs."""
    from veldt.run.description import describe_plan  # imports PyTorch

    shown = plan.options.run_dir
    now = json.loads(dumps(describe_plan(plan)))
    compared = {"architecture": (stored.get("architecture"), now["architecture"])}
    for part in ("options", "config"):
        for name, value in now[part].items():
            if name not in _MAY_DIFFER and name in stored[part]:
                compared[name] = (stored[part][name], value)
    for name, (before, value) in compared.items():
        if before != value:
            raise ConfigurationError(
                f"{shown} holds a run with {name} {before}, not {value}; give the same"
                " options or another --run-dir"
            )
    try:
        check_code(path / CONFIG_FILE, stored)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, in 'veldt resume {shown}'") from error


def finished_result(path: Path, options: RunOptions, stored: dict[str, Any]) -> RunResult | None:
    """The result of a run that has reached these limits already; None where it continues."""
    if any(stored["options"].get(name) != vars(options)[name] for name in LIMITS):
        return None
    try:
        result = RunResult.load(path / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None
    # A run that was resumed later and killed has a newer checkpoint.
    is_newest = result.env_steps >= step_of(ordered_names(path / CHECKPOINTS)[-1])
    return result if is_newest and result.stopped_by in _REACHED else None
