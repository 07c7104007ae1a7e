# SPDX-License-Identifier: Apache-2.0
"""Downloads a run from its store, to resume it or to read it.

Only committed checkpoints are used, and every byte of them is checked. A checkpoint that is still
damaged after several reads is skipped by name. A store that does not answer is an error, because
resuming from an older checkpoint would undo progress.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from veldt.backends.background import Background
from veldt.checkpoints.format import DAMAGE, verify
from veldt.checkpoints.store import ordered_names
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.remote.places import local_copy
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
)
from veldt.telemetry.log_files import LogFn, log_to_stderr

_READS = 3  # of a checkpoint that arrives damaged, or of a run whose files are being replaced
_REFRESH_SECONDS = 5.0

Listing = Mapping[str, int]


def download_run(store: RemoteStore, local: Path, log: LogFn) -> bool:
    """Make `local` hold the newest state of the run in the store, to resume it.

    A local run that continues what is in the store stays as it is; any other is moved aside.
    Returns whether there is a run at all."""
    listing = store.listing()
    commits = commits_in(listing, CHECKPOINTS)
    with held_folder(local, "run", "XDG_CACHE_HOME"):
        if (local / CONFIG).is_file():
            if _continues(local, commits[-1] if commits else None):
                return True
            aside = local.with_name(f"{local.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
            log(f"{local} is not what {store.url} has; it is moved to {aside}")
            _move_content(local, aside)
        if not commits:
            return False
        config = _download_newest(store, listing, commits, local, log) or ""
        _download_newest(store, listing, commits_in(listing, BEST), local, log)
        _download_files(store, listing, local)
        newest = ordered_names(local / CHECKPOINTS)[-1]
        record = {"url": store.url, CHECKPOINTS: digest_of(local / CHECKPOINTS / newest)}
        write_atomically(local / RECORD, json.dumps(record))
        # Last, because the directory holds no run without it: a download that was killed is redone.
        write_atomically(local / CONFIG, config, durable=True)
    return True


def download_copy(
    store: RemoteStore, local: Path, log: LogFn, checkpoint: str | int | None
) -> None:
    """Make `local` hold a run to read: its files and, unless `checkpoint` is None, that checkpoint
    and the best weights."""
    for attempt in range(_READS):
        try:
            return _download_copy(store, local, log, checkpoint)
        except StoreError:  # a run in progress may have deleted what was being read
            if attempt == _READS - 1:
                raise


def _download_copy(
    store: RemoteStore, local: Path, log: LogFn, checkpoint: str | int | None
) -> None:
    listing = store.listing()
    commits = commits_in(listing, CHECKPOINTS)
    with held_folder(local, "run", "XDG_CACHE_HOME"):
        if CONFIG not in listing and not commits:
            raise ConfigurationError(f"{store.url} holds no run; a run begins with config.json")
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


def follow_run(url: str) -> Path:
    """Download a run to read it, and keep its files up to date until this process ends."""
    store = RemoteStore(url)
    local = local_copy(store.url, "copies")
    try:
        download_copy(store, local, log_to_stderr, None)
    except StoreError as error:
        raise ConfigurationError(str(error)) from error

    def refresh() -> NoReturn:
        while True:
            time.sleep(_REFRESH_SECONDS)
            with suppress(StoreError, OSError):  # readers then see the last state
                refresh_files(store, local)

    Background(refresh)
    return local


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
) -> str | None:
    """Download the newest undamaged one of `commits`. Returns its config.json; None without any."""
    problems = []
    for commit in reversed(commits):
        for _ in range(_READS):
            try:
                return _download_commit(store, listing, commit, local)
            except DAMAGE as error:
                problem = f"{commit.name}: {' '.join(str(error).split())}"
        problems.append(problem)
        log(f"{store.url} holds a damaged checkpoint, which is left out: {problem}")
    if problems:
        raise ConfigurationError(
            f"no checkpoint in {store.url} is valid, and starting afresh would hide that; choose"
            f" another --run-dir. {'; '.join(problems)}"
        )
    return None


def _download_commit(store: RemoteStore, listing: Listing, commit: Commit, local: Path) -> str:
    """Download and check one checkpoint before it gets its name. Returns its config.json."""
    target, files = local / commit.folder / commit.name, commit.files_in(listing)
    own_config = local / f".{CONFIG}"
    store.download(f"{commit.prefix}/{CONFIG}", own_config, files.pop(CONFIG, 0))
    config = own_config.read_text(encoding="utf-8")
    own_config.unlink()
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
    """Download everything but checkpoints and config.json, each file whole."""
    for name, size in listing.items():
        parts = name.split("/")
        if parts[0] in (CHECKPOINTS, BEST, CONFIG, OWNER) or name.endswith(MARKER):
            continue
        if any(part.startswith(".") for part in parts):
            continue  # also "..": a store may hold any name
        draft = local / f".download-{os.getpid()}"
        try:
            store.download(name, draft, size, grows=True)
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft, local / name)
        finally:
            draft.unlink(missing_ok=True)


def _move_content(local: Path, aside: Path) -> None:
    """Move everything except the lock, which is held."""
    aside.mkdir(parents=True)
    for path in local.iterdir():
        if path.name != ".lock":
            path.rename(aside / path.name)
