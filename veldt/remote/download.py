# SPDX-License-Identifier: Apache-2.0
"""Downloads a run from its store, to resume it or to read it.

Only committed checkpoints are used, and every byte of them is checked. A damaged checkpoint is
skipped by name. A store that does not answer is an error, because
resuming from an older checkpoint would undo progress.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from veldt.checkpoints.format import DAMAGE, verify
from veldt.checkpoints.store import ordered_names
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.remote.store import RemoteStore, StoreError
from veldt.remote.upload import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    MARKER,
    OWNER,
    RECORD,
    Commit,
    commits_in,
    digest_of,
    write_record,
)
from veldt.telemetry.log_files import LogFn

_READS = 3  # of a run whose files are being replaced

Listing = Mapping[str, int]


def download_run(store: RemoteStore, local: Path, log: LogFn) -> None:
    """Make `local` hold the newest state of the run in the store, if any, to resume it.

    A local run that continues what is in the store stays as it is; any other is moved aside."""
    listing = store.listing()
    commits = commits_in(listing, CHECKPOINTS)
    with held_folder(local, "run", "XDG_CACHE_HOME"):
        if (local / CONFIG).is_file():
            if _continues(local, commits[-1] if commits else None):
                return
            aside = local.with_name(f"{local.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
            log(f"{local} is not what {store.url} has; it is moved to {aside}")
            aside.mkdir(parents=True)
            for path in local.iterdir():
                if path.name != ".lock":  # held
                    path.rename(aside / path.name)
        if not commits:
            return
        config = _download_newest(store, listing, commits, local, log)
        _download_newest(store, listing, commits_in(listing, BEST), local, log)
        _download_files(store, listing, local)
        write_record(local, digest_of(local / CHECKPOINTS / ordered_names(local / CHECKPOINTS)[-1]))
        # Last, because the directory holds no run without it: a download that was killed is redone.
        write_atomically(local / CONFIG, config or "", durable=True)


def download_copy(
    store: RemoteStore, local: Path, log: LogFn, checkpoint: str | int | None
) -> None:
    """Make `local` hold a run to read: its files and, unless `checkpoint` is None, that checkpoint
    and the best weights."""
    for attempt in range(_READS):
        try:
            listing = store.listing()
            commits = commits_in(listing, CHECKPOINTS)
            with held_folder(local, "run", "XDG_CACHE_HOME"):
                if CONFIG not in listing and not commits:
                    raise ConfigurationError(
                        f"{store.url} holds no run; a run begins with config.json"
                    )
                _download_files(store, listing, local)
                config = None
                if checkpoint is not None:
                    _download_newest(store, listing, commits_in(listing, BEST), local, log)
                    asked = [commit for commit in commits if str(commit.step) == str(checkpoint)]
                    config = _download_newest(store, listing, asked or commits, local, log)
                if config is None:
                    store.download(CONFIG, local / CONFIG, listing.get(CONFIG, 0), grows=True)
                else:
                    write_atomically(local / CONFIG, config)
            return
        except StoreError:  # a run in progress may have deleted what was being read
            if attempt == _READS - 1:
                raise


def refresh_files(store: RemoteStore, local: Path) -> None:
    """Download the files of a run in progress again, without its checkpoints."""
    _download_files(store, store.listing(), local)


def _continues(local: Path, newest: Commit | None) -> bool:
    """Whether the local run is the one in the store, or a later state of it."""
    try:
        recorded = json.loads((local / RECORD).read_bytes()).get(CHECKPOINTS)
    except DAMAGE:
        recorded = None
    if newest is None:
        return recorded is None  # nothing was uploaded yet; otherwise a user emptied the store
    folder = local / CHECKPOINTS
    known = (_digest_or_none(folder / name) for name in ordered_names(folder))
    return newest.digest == recorded or newest.digest in known


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest_of(path)
    except OSError:
        return None


def _download_newest(
    store: RemoteStore, listing: Listing, commits: list[Commit], local: Path, log: LogFn
) -> bytes | None:
    """Download the newest undamaged one of `commits`. Returns its config.json; None without any."""
    problems = []
    for commit in reversed(commits):
        try:
            return _download_commit(store, listing, commit, local)
        except StoreError:
            raise
        except DAMAGE as error:
            problems.append(f"{commit.name}: {' '.join(str(error).split())}")
            log(f"{store.url} holds a damaged checkpoint, which is left out: {problems[-1]}")
    if problems:
        raise ConfigurationError(
            f"no checkpoint in {store.url} is valid, and starting afresh would hide that; choose"
            f" another --run-dir. {'; '.join(problems)}"
        )
    return None


def _download_commit(store: RemoteStore, listing: Listing, commit: Commit, local: Path) -> bytes:
    """Download and check one checkpoint before it gets its name. Returns its config.json."""
    target, files = local / commit.folder / commit.name, commit.files_in(listing)
    config = store.read(f"{commit.prefix}/{CONFIG}") or b""
    if len(config) != files.pop(CONFIG, 0):
        raise ValueError(f"{CONFIG} is incomplete")
    if _digest_or_none(target) == commit.digest:
        return config
    draft = local / commit.folder / f".tmp-{commit.name}"
    shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, size in files.items():
        store.download(f"{commit.prefix}/{name}", draft / Path(name).name, size)
    verify(draft)
    if digest_of(draft) != commit.digest:
        raise ValueError("its manifest is not the one that was committed")
    os.rename(draft, target)
    return config


def _download_files(store: RemoteStore, listing: Listing, local: Path) -> None:
    """Download everything but checkpoints and config.json."""
    for name, size in listing.items():
        parts = name.split("/")
        if parts[0] in (CHECKPOINTS, BEST, CONFIG, OWNER) or name.endswith(MARKER):
            continue
        if not any(part.startswith(".") for part in parts):  # also "..": any name may be stored
            store.download(name, local / name, size, grows=True)
