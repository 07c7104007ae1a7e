# SPDX-License-Identifier: Apache-2.0
"""Uploads a run in the background: its files every few seconds, checkpoints with a marker last.

    STORE/checkpoints/checkpoint-000000001000-4f0c.../...     the files of a checkpoint
    STORE/checkpoints/checkpoint-000000001000-4f0c....committed

A checkpoint counts once its marker exists; the marker is empty, so it cannot be half written. The
folder is named after the hash of the manifest, so a process that was believed dead cannot write
into a checkpoint of its successor. It also holds the config.json of that time.

Training never waits for an upload. A round takes the newest checkpoint, hard-linked into a staging
folder where its rotation cannot delete it; those that were written during a round are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from veldt.backends.background import Background
from veldt.callbacks import Callback
from veldt.checkpoints.format import DAMAGE, MANIFEST, META, json_bytes
from veldt.checkpoints.store import ordered_names, step_of
from veldt.errors import UploadFailure
from veldt.files import write_atomically
from veldt.remote.store import RemoteStore, StoreError

CONFIG = "config.json"
CHECKPOINTS, BEST = "checkpoints", "best"
OWNER = "owner.json"
"""Names the process that uploads to this store."""
RECORD = ".remote.json"
"""In the local directory: hash of the last checkpoint that was committed to the store."""
MARKER = ".committed"
_MARKER_NAME = re.compile(r"(checkpoint-(\d{12})(?:\.(\d{1,6}))?)-([0-9a-f]{16})\.committed")
_STAGE = ".upload"
_FILES_SECONDS = 15.0  # between two uploads of metrics and the like
_RETRY_SECONDS, _LAST_RETRY_SECONDS = 3.0, 1.0


@dataclass(frozen=True)
class Commit:
    """One checkpoint in a store."""

    folder: str
    """"checkpoints" or "best"."""
    name: str
    """As on disk."""
    digest: str
    """Of its manifest."""

    @property
    def prefix(self) -> str:
        return f"{self.folder}/{self.name}-{self.digest}"

    @property
    def marker(self) -> str:
        return self.prefix + MARKER

    @property
    def step(self) -> int:
        return step_of(self.name)

    def files_in(self, listing: Mapping[str, int]) -> dict[str, int]:
        """Name and size of its files."""
        start = self.prefix + "/"
        return {name[len(start) :]: n for name, n in listing.items() if name.startswith(start)}


def digest_of(checkpoint: Path) -> str:
    """Hash of the manifest of a local checkpoint."""
    return hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()[:16]


def write_record(run_dir: Path, digest: str) -> None:
    write_atomically(run_dir / RECORD, json_bytes({CHECKPOINTS: digest}))


def commits_in(listing: Mapping[str, int], folder: str) -> list[Commit]:
    """The checkpoints of a folder that have a marker, oldest first."""
    found = []
    for path in listing:
        parent, _, name = path.rpartition("/")
        match = _MARKER_NAME.fullmatch(name)
        if match and parent == folder:
            order = int(match[2]), int(match[3] or 0), match[4]
            found.append((order, Commit(folder, match[1], match[4])))
    return [commit for _, commit in sorted(found, key=lambda entry: entry[0])]


class RunUploader(Callback):
    """Keeps a store up to date with one run directory, and the newest `keep` checkpoints there."""

    def __init__(
        self, store: RemoteStore, run_dir: Path, keep: int, log: Callable[[str], None]
    ) -> None:
        self._store, self._run_dir, self._log = store, run_dir, log
        self._stage = run_dir / _STAGE
        self._keep = {CHECKPOINTS: keep, BEST: 1}
        self._identity = uuid.uuid4().hex
        self._uploaded: dict[str, tuple[int, int]] = {}
        """Size and time of change of the files in the store."""
        self._committed: dict[str, Commit] = {}
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._work: Background[None] | None = None
        self._is_ending = self._is_abandoned = False
        self._problem = ""
        self.successor: str | None = None
        """The process that has taken over the run since."""

    def begin(self) -> None:
        """Take over the run from any earlier uploader. Raises StoreError if writing fails, so that
        no run trains without a place for its results."""
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
        self._wake.put(None)

    def on_progress(self, metrics: Mapping[str, float]) -> bool:
        """True once another process has taken over the run."""
        self._start()
        return self.successor is not None

    def finish(self) -> None:
        """Upload the rest. Raises UploadFailure if it takes longer than the store's patience."""
        self._is_ending = True
        self._wake.put(None)
        seconds = self._store.patience_seconds
        has_ended = self._start().done(seconds)
        if self.successor is not None:
            raise UploadFailure(
                f"{self._store.url} was taken over by {self.successor}; this run has ended, and"
                f" what it did since is in {self._run_dir} only"
            )
        if not has_ended:
            self._is_abandoned = True
            newest = self._committed.get(CHECKPOINTS)
            there = f"the checkpoint of {newest.step} env steps" if newest else "no checkpoint"
            problem = f" ({self._problem})" if self._problem else ""
            raise UploadFailure(
                f"{self._store.url} has {there} and not the end of the run after {seconds:g} s"
                f"{problem}; all of it is in {self._run_dir}, and the same command on this machine"
                " uploads it"
            )

    def _start(self) -> Background[None]:
        if self._work is None:
            self._work = Background(self._upload_rounds)
        return self._work

    def _upload_rounds(self) -> None:
        pause = 0.0
        while self.successor is None and not self._is_abandoned:
            with suppress(queue.Empty):
                self._wake.get(timeout=pause)
            is_last = self._is_ending
            try:
                self._upload()
            except DAMAGE as error:
                if not self._problem:
                    self._log(f"upload: {error}; it is tried again, and training continues")
                self._problem = str(error)
                pause = _LAST_RETRY_SECONDS if is_last else _RETRY_SECONDS
                continue
            if self._problem:
                self._problem = ""
                self._log(f"{self._store.url} takes uploads again")
            if is_last:
                return
            pause = _FILES_SECONDS

    def _upload(self) -> None:
        if not self._is_mine():
            return
        self._put(_run_files(self._run_dir), self._uploaded)
        for folder in self._keep:
            shutil.rmtree(self._stage, ignore_errors=True)
            commit = self._staged(folder)
            if commit is not None:
                self._commit(commit)
        shutil.rmtree(self._stage, ignore_errors=True)

    def _is_mine(self) -> bool:
        owner = json.loads(self._store.read(OWNER) or b"{}")
        if owner.get("id", self._identity) == self._identity:
            return True
        self.successor = f"{owner.get('host')}, process {owner.get('pid')}"
        return False

    def _put(self, files: Mapping[str, Path], uploaded: dict[str, tuple[int, int]]) -> None:
        """Upload files that are not in `uploaded`, and add those that a listing shows in full size.

        Raises StoreError if one is not."""
        sent = {}
        for name, path in files.items():
            with suppress(FileNotFoundError):  # it was just deleted
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if uploaded.get(name) != stamp:
                    self._store.upload(path, name)
                    sent[name] = stamp
        stored = self._store.listing() if sent else {}
        # A log may have grown before it was read.
        whole = {name: stamp for name, stamp in sent.items() if stored.get(name, -1) >= stamp[0]}
        uploaded.update(whole)
        if whole != sent:
            torn = ", ".join(sorted(set(sent) - set(whole)))
            raise StoreError(f"{self._store.url} has not all of {torn}")

    def _staged(self, folder: str) -> Commit | None:
        """Link the newest checkpoint into the staging folder, unless the store has it."""
        names = ordered_names(self._run_dir / folder)
        if not names:
            return None
        path = self._run_dir / folder / names[-1]
        try:
            commit = Commit(folder, path.name, digest_of(path))
            if commit == self._committed.get(folder):
                return None
            if folder == CHECKPOINTS and not json.loads((path / META).read_bytes())["complete"]:
                return None  # weights only, of a run that failed: nothing to resume from
            shutil.copytree(path, self._stage, copy_function=_link)
        except FileNotFoundError:
            return None  # its rotation was faster; the next round finds a newer one
        shutil.copyfile(self._run_dir / CONFIG, self._stage / CONFIG)
        return commit

    def _commit(self, commit: Commit) -> None:
        """Upload what the store lacks of the staged checkpoint, then its marker."""
        stored = commit.files_in(self._store.listing(commit.prefix))
        missing = {
            f"{commit.prefix}/{path.name}": path
            for path in self._stage.iterdir()
            if stored.get(path.name) != path.stat().st_size
        }
        self._put(missing, {})
        if not self._is_mine():
            return
        self._store.write(commit.marker, b"")
        if commit.folder == CHECKPOINTS:
            write_record(self._run_dir, commit.digest)
        self._committed[commit.folder] = commit
        self._delete_older_than(commit)

    def _delete_older_than(self, newest: Commit) -> None:
        """Delete checkpoints beyond the number to keep and those without a marker."""
        listing = self._store.listing(newest.folder)
        commits = commits_in(listing, newest.folder)
        if newest not in commits:
            return
        first_kept = max(0, commits.index(newest) + 1 - self._keep[newest.folder])
        self._store.remove(commit.marker for commit in commits[:first_kept])
        kept = tuple(f"{commit.prefix}/" for commit in commits[first_kept:])
        files = (name for name in listing if "/checkpoint-" in name and name.count("/") == 2)
        self._store.remove(name for name in files if not name.startswith(kept))


def _run_files(run_dir: Path) -> dict[str, Path]:
    """Every file of a run by name, except checkpoints and hidden files."""
    found = {}
    for parent, folders, files in os.walk(run_dir):
        where = Path(parent)
        left_out = (CHECKPOINTS, BEST) if where == run_dir else ()
        folders[:] = [name for name in folders if name[0] != "." and name not in left_out]
        for path in (where / file for file in files if file[0] != "."):
            found[path.relative_to(run_dir).as_posix()] = path
    return found


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
