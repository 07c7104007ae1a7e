# SPDX-License-Identifier: Apache-2.0
"""Where a run is: a directory of this machine, or a URL with a copy in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from veldt.callbacks import Callback
from veldt.errors import ConfigurationError, UploadFailure
from veldt.remote.places import checked_url, is_remote, local_copy
from veldt.telemetry.log_files import log_to_stderr
from veldt.telemetry.result import RunResult


@dataclass(frozen=True)
class RunLocation:
    """Where one run is, or will be."""

    run_dir: str | None
    """As the user gave it."""
    path: Path | None
    """Of its files on this machine; None: a new directory is made."""

    def uploading(
        self, keep: int, callbacks: Sequence[Callback], run: Callable[..., RunResult]
    ) -> RunResult:
        """The result of `run(callbacks)`; files of a remote run are uploaded meanwhile."""
        if self.path is None or not is_remote(self.run_dir):
            return run(callbacks)
        from veldt.remote.store import RemoteStore, StoreError
        from veldt.remote.upload import RunUploader

        store = RemoteStore(str(self.run_dir), _store_seconds())
        uploader = RunUploader(store, self.path, keep, log_to_stderr)
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


def _store_seconds() -> float:
    """Time that a store may take to answer, and to take the last upload."""
    return float(os.environ.get("VELDT_STORE_SECONDS", 60.0))


def run_location(run_dir: str | None, base: Path) -> RunLocation:
    """Where a run is or will be; a remote run is downloaded."""
    if not is_remote(run_dir):
        return RunLocation(run_dir, None if run_dir is None else base / run_dir)
    from veldt.remote.download import download_run
    from veldt.remote.store import RemoteStore, StoreError

    url = checked_url(str(run_dir))
    local = local_copy(url)
    try:
        download_run(RemoteStore(url, _store_seconds()), local, log_to_stderr)
    except StoreError as error:
        raise ConfigurationError(f"{error}; nothing was started") from error
    return RunLocation(url, local)


def local_run(run_dir: str | Path, checkpoint: str | int | None = None) -> Path:
    """The directory of a run to read from; the files needed of a remote run are downloaded."""
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
