# SPDX-License-Identifier: Apache-2.0
"""Uploads a run while it goes on: its files every few seconds, each checkpoint with a marker last.

Training never waits for it. What is to be uploaded is linked aside at once, so that the rotation of
checkpoints cannot take it away; where the store is slower than checkpoints are made, the newest one
is uploaded next and those in between are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from veldt.backends.background import Background
from veldt.callbacks import Callback
from veldt.checkpoints.format import DAMAGE, META, json_bytes
from veldt.checkpoints.store import ordered_names
from veldt.errors import UploadFailure
from veldt.files import write_atomically
from veldt.remote.commits import Commit, commits_in, digest_of, files_of
from veldt.remote.store import RemoteStore, StoreError

CONFIG = "config.json"
CHECKPOINTS, BEST = "checkpoints", "best"
OWNER = "owner.json"
RECORD = ".remote.json"
"""On this machine: the store, and what this directory has committed to it last."""
_STAGE = ".upload"
_FILES_SECONDS = 15.0  # between two uploads of metrics and the like
_PAUSE_SECONDS = 3.0  # after one that failed


@dataclass
class _Round:
    """What one round uploads, in this order: files, then checkpoints."""

    staged: dict[str, tuple[Commit, Path]]
    work: Background[None] | None = None


class Mirror(Callback):
    """Keeps a store up to date with one run directory. `say` gets a line when uploads stop working,
    and when they work again."""

    def __init__(
        self, store: RemoteStore, run_dir: Path, keep: int, say: Callable[[str], None]
    ) -> None:
        self._store, self._run_dir, self._say = store, run_dir, say
        self._keep = {CHECKPOINTS: keep, BEST: 1}
        self._identity = uuid.uuid4().hex
        self._uploaded: dict[str, tuple[int, int]] = {}
        """Size and time of change of files that the store has."""
        self._committed: dict[str, Commit] = {}
        self._staged: dict[str, tuple[Commit, Path]] = {}
        self._round: _Round | None = None
        self._next_round, self._is_failing = 0.0, False
        self._problem = ""
        self.successor: str | None = None
        """Who has taken the run over meanwhile."""

    def begin(self) -> None:
        """Take the run over: whoever uploaded to it before will find that out. Raises StoreError
        where nothing can be written, so that nobody trains for nothing."""
        shutil.rmtree(self._run_dir / _STAGE, ignore_errors=True)
        owner = {"id": self._identity, "host": socket.gethostname(), "pid": os.getpid()}
        content, listing = json_bytes(owner), dict[str, int]()
        deadline = time.monotonic() + self._store.patience_seconds
        while listing.get(OWNER) != len(content):
            if time.monotonic() > deadline:
                raise StoreError(f"{self._store.url} does not keep what is written to it")
            self._store.write(OWNER, content)
            listing = self._store.listing()
        for folder in self._keep:
            for commit in commits_in(listing, folder)[-1:]:
                self._committed[folder] = commit

    def on_checkpoint(self, path: Path, env_steps: int) -> None:
        self._stage(CHECKPOINTS)
        self._next_round = 0.0

    def on_progress(self, metrics: Mapping[str, float]) -> bool:
        """True once another process has taken the run over."""
        now = time.monotonic()
        self._look(now)
        if self._round is None and now >= self._next_round:
            self._start(now)
        return self.successor is not None

    def finish(self) -> None:
        """Upload what is left. Raises UploadFailure when that takes longer than the store's
        patience."""
        deadline = time.monotonic() + self._store.patience_seconds
        self._stage(CHECKPOINTS)
        is_last = False
        while self.successor is None and not (is_last and self._round is None):
            if self._round is None:
                self._start(time.monotonic())
                is_last = True
            if self._round is not None and self._round.work is not None:
                self._round.work.done(max(0.0, deadline - time.monotonic()))
            self._look(time.monotonic())
            if self._round is None and self._is_failing:
                is_last = False
                time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline and not (is_last and self._round is None):
                raise UploadFailure(self._what_is_missing())
        if self.successor is not None:
            raise UploadFailure(
                f"{self._store.url} was taken over by {self.successor}; this run has ended, and"
                f" what it did since is in {self._run_dir} only"
            )
        shutil.rmtree(self._run_dir / _STAGE, ignore_errors=True)

    def _what_is_missing(self) -> str:
        newest = self._committed.get(CHECKPOINTS)
        there = "no checkpoint" if newest is None else f"the checkpoint of {newest.step} env steps"
        problem = f" ({self._problem})" if self._problem else ""
        return (
            f"{self._store.url} has {there} and not the end of the run after"
            f" {self._store.patience_seconds:g} s{problem}; all of it is in {self._run_dir}, and"
            " the same command on this machine uploads it"
        )

    def _stage(self, folder: str) -> None:
        """Link the newest checkpoint aside, in the place of one that still waits there."""
        names = ordered_names(self._run_dir / folder)
        if not names:
            return
        path = self._run_dir / folder / names[-1]
        try:
            commit = Commit(folder, path.name, digest_of(path))
            if folder == CHECKPOINTS and not json.loads((path / META).read_bytes())["complete"]:
                return  # weights only: nothing that a run could go on from
            waiting = self._staged.get(folder)
            if commit == self._committed.get(folder) or (waiting and commit == waiting[0]):
                return
            target = self._run_dir / _STAGE / f"{uuid.uuid4().hex}"
            shutil.copytree(path, target, copy_function=_link)
            shutil.copyfile(self._run_dir / CONFIG, target / CONFIG)
        except DAMAGE as error:
            self._fail(f"{path.name} could not be set aside: {error}")
            return
        before = self._staged.pop(folder, None)
        if before is not None and not self._is_under_way(before[1]):
            shutil.rmtree(before[1], ignore_errors=True)
        self._staged[folder] = (commit, target)

    def _is_under_way(self, path: Path) -> bool:
        return self._round is not None and any(
            staged == path for _, staged in self._round.staged.values()
        )

    def _start(self, now: float) -> None:
        self._next_round = now + _FILES_SECONDS
        self._stage(BEST)
        staged = {folder: self._staged[folder] for folder in self._keep if folder in self._staged}
        upload = _Round(staged)
        upload.work = Background(lambda: self._upload(upload))
        self._round = upload

    def _look(self, now: float) -> None:
        """See how far the round under way has come."""
        upload = self._round
        if upload is None or upload.work is None or not upload.work.done():
            return
        self._round = None
        try:
            upload.work.result()
        except (StoreError, *DAMAGE) as error:
            self._next_round = now + _PAUSE_SECONDS
            self._fail(str(error))
            return
        for folder, (commit, path) in upload.staged.items():
            self._committed[folder] = commit
            if self._staged.get(folder) == (commit, path):
                del self._staged[folder]
            shutil.rmtree(path, ignore_errors=True)
        if self._staged:
            self._next_round = 0.0
        if self._is_failing:
            self._is_failing, self._problem = False, ""
            self._say(f"{self._store.url} takes uploads again")

    def _fail(self, problem: str) -> None:
        self._problem = problem
        if not self._is_failing:
            self._is_failing = True
            self._say(f"upload: {problem}; it is tried again, and training continues")

    def _upload(self, upload: _Round) -> None:
        """On a thread of its own: nothing of the run may be touched here but files."""
        if not self._is_mine():
            return
        self._upload_files()
        for commit, path in upload.staged.values():
            self._commit(commit, path)

    def _is_mine(self) -> bool:
        owner = json.loads(self._store.read(OWNER) or b"{}")
        if owner.get("id", self._identity) == self._identity:
            return True
        self.successor = f"{owner.get('host')}, process {owner.get('pid')}"
        return False

    def _upload_files(self) -> None:
        sent = {}
        for name, path in run_files(self._run_dir):
            try:
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if self._uploaded.get(name) != stamp:
                    self._store.upload(path, name)
                    sent[name] = stamp
            except FileNotFoundError:
                continue  # it was replaced or deleted just now
        there = self._store.listing() if sent else {}
        # A log may have grown before it was read.
        whole = {name: stamp for name, stamp in sent.items() if there.get(name, -1) >= stamp[0]}
        self._uploaded.update(whole)
        if whole != sent:
            torn = ", ".join(sorted(set(sent) - set(whole)))
            raise StoreError(f"{self._store.url} has not all of {torn}")

    def _commit(self, commit: Commit, path: Path) -> None:
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        there = files_of(self._store.listing(commit.prefix), commit)
        for name, size in sizes.items():
            if there.get(name) != size:
                self._store.upload(path / name, f"{commit.prefix}/{name}")
        there = files_of(self._store.listing(commit.prefix), commit)
        if there != sizes:
            torn = sorted(name for name in sizes if there.get(name) != sizes[name])
            raise StoreError(f"{self._store.url} has not all of {commit.name}: {', '.join(torn)}")
        if not self._is_mine():
            return
        self._store.write(commit.marker, b"")
        record = {"url": self._store.url, CHECKPOINTS: commit.digest}
        if commit.folder == CHECKPOINTS:
            write_atomically(self._run_dir / RECORD, json_bytes(record))
        self._retire(commit)

    def _retire(self, newest: Commit) -> None:
        """Delete what is older than the kept ones, markers first, and what was never committed."""
        listing = self._store.listing(newest.folder)
        commits = commits_in(listing, newest.folder)
        earlier = commits[: commits.index(newest) + 1] if newest in commits else []
        kept = [*earlier[-self._keep[newest.folder] :], *commits[len(earlier) :]]
        if not kept:
            return
        prefixes = tuple(f"{commit.prefix}/" for commit in kept)
        self._store.remove(commit.marker for commit in commits if commit not in kept)
        self._store.remove(
            name for name in listing if "/checkpoint-" in name and name.count("/") == 2
            and not name.startswith(prefixes)
        )  # fmt: skip


def run_files(run_dir: Path) -> list[tuple[str, Path]]:
    """Name and path of every file of a run but its checkpoints and what is hidden."""
    found = []
    for parent, folders, files in os.walk(run_dir):
        where = Path(parent)
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        if where == run_dir:
            folders[:] = [folder for folder in folders if folder not in (CHECKPOINTS, BEST)]
        found += [where / file for file in files if not file.startswith(".")]
    return [(path.relative_to(run_dir).as_posix(), path) for path in sorted(found)]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
