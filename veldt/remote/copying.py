# SPDX-License-Identifier: Apache-2.0
"""Brings a run from its store to this machine: to go on with it, or to look at it.

Only what was committed is believed, and every byte of it is checked. A checkpoint that stays
damaged however often it is read is left out by name; a store that does not answer is a reason to
stop, since an older checkpoint would undo what was reached.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from veldt.checkpoints.format import DAMAGE, verify
from veldt.checkpoints.store import ordered_names
from veldt.errors import ConfigurationError
from veldt.files import held_folder, write_atomically
from veldt.remote.commits import (
    MARKER,
    Commit,
    commits_in,
    digest_of,
    files_of,
)
from veldt.remote.mirror import BEST, CHECKPOINTS, CONFIG, OWNER, RECORD
from veldt.remote.store import RemoteStore, StoreError

_READS = 3  # of a checkpoint whose bytes are not what they were

Say = Callable[[str], None]


def bring_here(store: RemoteStore, local: Path, say: Say) -> bool:
    """Make `local` hold the newest state of the run; whether there is a run at all. What lies there
    stays if it goes on from what the store has, and is moved aside if it does not."""
    listing = store.listing()
    commits = commits_in(listing, CHECKPOINTS)
    with held_folder(local, "run", "XDG_CACHE_HOME"):
        has_run = (local / CONFIG).is_file()
        if has_run and _goes_on_from(local, commits[-1] if commits else None):
            return True
        if has_run:
            aside = local.with_name(f"{local.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
            say(f"{local} is not what {store.url} has; it is moved to {aside}")
            _move_content(local, aside)
        if not commits:
            return False
        config = _fetch_newest(store, listing, commits, local, say)
        _fetch_newest(store, listing, commits_in(listing, BEST), local, say)
        _fetch_files(store, listing, local)
        newest = ordered_names(local / CHECKPOINTS)[-1]
        record = {"url": store.url, CHECKPOINTS: digest_of(local / CHECKPOINTS / newest)}
        write_atomically(local / RECORD, json.dumps(record))
        # Last: without it the directory holds no run, and all of this is done again.
        write_atomically(local / CONFIG, config, durable=True)
    return True


def copy_to_read(store: RemoteStore, local: Path, say: Say, checkpoint: str | int | None) -> None:
    """Make `local` hold what looking at a run needs: its files and, unless `checkpoint` is None,
    that checkpoint and the best weights. A run that goes on may delete what is being read, which is
    then looked for again."""
    for _ in range(_READS - 1):
        try:
            return _copy_to_read(store, local, say, checkpoint)
        except StoreError:
            continue
    return _copy_to_read(store, local, say, checkpoint)


def _copy_to_read(store: RemoteStore, local: Path, say: Say, checkpoint: str | int | None) -> None:
    listing = store.listing()
    commits = commits_in(listing, CHECKPOINTS)
    with held_folder(local, "run", "XDG_CACHE_HOME"):
        if CONFIG not in listing and not commits:
            raise ConfigurationError(f"{store.url} holds no run; a run begins with config.json")
        _fetch_files(store, listing, local)
        config = None
        if checkpoint is not None:
            _fetch_newest(store, listing, commits_in(listing, BEST), local, say)
            asked = [commit for commit in commits if str(commit.step) == str(checkpoint)]
            config = _fetch_newest(store, listing, asked or commits, local, say)
        if config is None:
            store.download(CONFIG, local / CONFIG, listing.get(CONFIG, 0), grows=True)
        else:
            write_atomically(local / CONFIG, config)


def refresh_files(store: RemoteStore, local: Path) -> None:
    """Bring the files of a run that goes on elsewhere up to date."""
    _fetch_files(store, store.listing(), local)


def _goes_on_from(local: Path, newest: Commit | None) -> bool:
    """Whether a run on this machine is the one in the store, or further."""
    try:
        recorded = json.loads((local / RECORD).read_bytes()).get(CHECKPOINTS)
    except DAMAGE:
        recorded = None
    if newest is None:
        return recorded is None  # nothing was ever uploaded; else the store was emptied on purpose
    if newest.digest == recorded:
        return True
    folder = local / CHECKPOINTS
    return any(_digest_or_none(folder / name) == newest.digest for name in ordered_names(folder))


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest_of(path)
    except OSError:
        return None


def _fetch_newest(
    store: RemoteStore, listing: dict[str, int], commits: list[Commit], local: Path, say: Say
) -> str:
    """Download the newest of these that is whole; config.json as it was then."""
    problems = []
    for commit in reversed(commits):
        for _ in range(_READS):
            try:
                return _fetch(store, listing, commit, local)
            except DAMAGE as error:
                problem = f"{commit.name}: {' '.join(str(error).split())}"
        problems.append(problem)
        say(f"{store.url} holds a damaged checkpoint, which is left out: {problem}")
    if problems:
        raise ConfigurationError(
            f"no checkpoint in {store.url} is valid, and starting afresh would hide that; choose"
            f" another --run-dir. {'; '.join(problems)}"
        )
    return ""


def _fetch(store: RemoteStore, listing: dict[str, int], commit: Commit, local: Path) -> str:
    """One checkpoint, checked byte by byte before it gets its name; config.json of that time."""
    target, files = local / commit.folder / commit.name, files_of(listing, commit)
    own_config = local / f".{CONFIG}"
    store.download(f"{commit.prefix}/{CONFIG}", own_config, files.pop(CONFIG, 0))
    config = own_config.read_text(encoding="utf-8")
    own_config.unlink()
    if target.exists() and _digest_or_none(target) == commit.digest:
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


def _fetch_files(store: RemoteStore, listing: dict[str, int], local: Path) -> None:
    """What is neither a checkpoint nor config.json, which says that all is there. Lines of metrics
    and the like may be older than the checkpoint, never half written."""
    for name, size in listing.items():
        folder, hidden = name.partition("/")[0], name.split("/")
        if folder in (CHECKPOINTS, BEST, CONFIG, OWNER) or name.endswith(MARKER):
            continue
        if any(part.startswith(".") for part in hidden):
            continue  # also "..": a store may hold any name
        draft = local / f".download-{os.getpid()}"
        try:
            store.download(name, draft, size, grows=True)
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft, local / name)
        finally:
            draft.unlink(missing_ok=True)


def _move_content(local: Path, aside: Path) -> None:
    """All but the lock, which is held."""
    aside.mkdir(parents=True)
    for path in local.iterdir():
        if path.name != ".lock":
            path.rename(aside / path.name)
