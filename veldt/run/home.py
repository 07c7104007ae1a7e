# SPDX-License-Identifier: Apache-2.0
"""Where a run lives, here or in a store, and whether a command that names an existing one goes on
with it: a scheduler may then repeat the same command as often as it likes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.callbacks import Callback
from veldt.checkpoints.format import DAMAGE, META
from veldt.checkpoints.store import ordered_names, step_of
from veldt.errors import ConfigurationError, UploadFailure
from veldt.files import lock
from veldt.options import RunOptions
from veldt.remote.places import checked_url, is_remote, local_copy
from veldt.run.changing import ENDS, MAY_CHANGE
from veldt.run.directory import CHECKPOINTS
from veldt.run.output import stream
from veldt.run.trust import check_code
from veldt.telemetry.log_files import log_to_stderr
from veldt.telemetry.progress import make_progress
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE
from veldt.telemetry.result import RunResult, dumps

if TYPE_CHECKING:
    from veldt.run.plan import Plan

_OF_THE_START = {"run_dir", "preset"}
_BY_MACHINE = ("num_actors", "envs_per_actor")
"""Sizes that the first machine chose where they were left open; another may have other cores, or
another device, which the preset depends on."""


@dataclass(frozen=True)
class Home:
    """The place of one run."""

    run_dir: str | None
    """As it was given."""
    path: Path | None
    """Of its files on this machine; None: a new one will be made."""
    holds_run: bool

    def keeping(
        self, options: RunOptions, callbacks: Sequence[Callback], run: Callable[..., RunResult]
    ) -> RunResult:
        """What `run(callbacks)` returns; meanwhile and after it, the store is brought up to
        date."""
        if self.path is None or not is_remote(self.run_dir):
            return run(callbacks)
        from veldt.remote.store import RemoteStore, StoreError
        from veldt.remote.upload import RunUploader

        store = RemoteStore(str(self.run_dir), store_seconds())
        uploader = RunUploader(store, self.path, options.checkpoint_options.keep, log_to_stderr)
        try:
            uploader.begin()
        except StoreError as error:
            raise ConfigurationError(f"{error}; nothing was started") from error
        try:
            result = run([*callbacks, uploader])
        except ConfigurationError:
            raise  # nothing was started
        except BaseException:
            try:
                uploader.finish()
            except UploadFailure as failure:
                log_to_stderr(str(failure))
            raise
        uploader.finish()
        return result


def store_seconds() -> float:
    """How long a store may take to answer, and to take the last upload."""
    return float(os.environ.get("VELDT_STORE_SECONDS", 60.0))


def home_of(run_dir: str | None, base: Path) -> Home:
    """Where a run is or will be; what a store has of it is brought to this machine."""
    if not is_remote(run_dir):
        path = None if run_dir is None else base / run_dir
        holds = path is not None and (path / CONFIG_FILE).exists()
        return Home(run_dir, path, holds)
    from veldt.remote.download import download_run
    from veldt.remote.store import RemoteStore, StoreError

    url = checked_url(str(run_dir))
    local = local_copy(url)
    try:
        holds = download_run(RemoteStore(url, store_seconds()), local, log_to_stderr)
    except StoreError as error:
        raise ConfigurationError(f"{error}; nothing was started") from error
    return Home(url, local, holds)


def run_to_resume(home: Home) -> dict[str, Any] | None:
    """config.json of the run that is there; None: start a new one."""
    if not home.holds_run or home.path is None:
        return None
    if not _has_checkpoint(home.path):
        _forget(home.path)
        log_to_stderr(f"{home.run_dir} was begun and left no checkpoint; it begins anew")
        return None
    try:
        stored: dict[str, Any] = json.loads((home.path / CONFIG_FILE).read_text(encoding="utf-8"))
        assert isinstance(stored["options"], dict)
        assert isinstance(stored["config"], dict)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ConfigurationError(
            f"{home.path / CONFIG_FILE} cannot be read ({type(error).__name__}: {error}); choose"
            " another --run-dir"
        ) from error
    return stored


def _has_checkpoint(path: Path) -> bool:
    """Whether there is something to go on from; a damaged one counts, and will be refused."""
    for name in ordered_names(path / CHECKPOINTS):
        try:
            if json.loads((path / CHECKPOINTS / name / META).read_bytes())["complete"]:
                return True
        except DAMAGE:
            return True
    return False


def _forget(path: Path) -> None:
    """Make room for a run in the place of one that never came to a checkpoint."""
    held = lock(path / ".lock")
    if held is None:
        raise ConfigurationError(
            f"run directory {path} is in use by another run; choose another --run-dir"
        )
    try:
        for name in ordered_names(path / CHECKPOINTS):  # weights only, of a run that failed
            os.rename(path / CHECKPOINTS / name, path / CHECKPOINTS / f".tmp-{name}")
        (path / RESULT_FILE).unlink(missing_ok=True)
        (path / CONFIG_FILE).unlink()
    finally:
        os.close(held)


def with_sizes_of(options: RunOptions, stored: dict[str, Any]) -> RunOptions:
    """Where sizes were left to the machine, those that the run has."""
    known = {
        name: stored["options"].get(name)
        for name in _BY_MACHINE
        if vars(options)[name] is None and type(stored["options"].get(name)) is int
    }
    preset = stored.get("chosen", {}).get("preset", options.preset)
    chosen = preset if options.preset == "auto" else options.preset
    return replace(options, preset=chosen, **known)


def check_same(home: Home, plan: Plan, stored: dict[str, Any]) -> None:
    """Refuse to go on with a run of other options, by the name of the first that differs."""
    from veldt.run.description import describe_plan  # with torch, which others must not wait for

    now = json.loads(dumps(describe_plan(plan)))
    pairs = {"architecture": (stored.get("architecture"), now["architecture"])}
    for part in ("options", "config"):
        for name, value in now[part].items():
            if name not in MAY_CHANGE | _OF_THE_START and name in stored[part]:
                pairs[name] = (stored[part][name], value)
    for name, (before, value) in pairs.items():
        if before != value:
            raise ConfigurationError(
                f"{home.run_dir} holds a run with {name} {before}, not {value}; give the same"
                " options or another --run-dir"
            )
    assert home.path is not None
    try:
        check_code(home.path, stored)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, in 'veldt resume {home.run_dir}'") from error


def finished(home: Home, plan: Plan, stored: dict[str, Any]) -> RunResult | None:
    """The result of a run that has come to this very end already; None where it is to go on."""
    assert home.path is not None
    options = plan.options
    try:
        result = RunResult.load(home.path / RESULT_FILE)
        newest = ordered_names(home.path / CHECKPOINTS)[-1]
        if any(stored["options"].get(name) != vars(options)[name] for name in ENDS):
            return None
        if result.env_steps < step_of(newest):
            return None  # it was resumed since, and lost
        reached = {
            "env_steps": lambda: result.env_steps >= (options.total_env_steps or 0),
            "seconds": lambda: result.wall_seconds >= (options.max_seconds or 0.0),
            "target": lambda: result.reached_target,
        }
        return result if reached.get(result.stopped_by, lambda: False)() else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def shown(plan: Plan, result: RunResult) -> RunResult:
    """Say how a run ended that has ended before."""
    from veldt.run.description import goal_of

    options = plan.options
    make_progress(goal_of(plan), options.quiet, options.json, stream()).finish(result)
    return result


def local_run(run_dir: str | Path, checkpoint: str | int | None = None) -> Path:
    """The directory of a run to look at; one in a store is copied, as far as it is needed."""
    if not is_remote(run_dir):
        return Path(run_dir)
    from veldt.remote.download import download_copy
    from veldt.remote.store import RemoteStore, StoreError

    store = RemoteStore(str(run_dir))
    local = local_copy(store.url, "copies")
    try:
        download_copy(store, local, log_to_stderr, checkpoint)
    except StoreError as error:
        raise ConfigurationError(str(error)) from error
    return local
