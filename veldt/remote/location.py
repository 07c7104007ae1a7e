# SPDX-License-Identifier: Apache-2.0
"""Where a run is: a directory, a policy of the zoo, or a URL with a copy in the user's cache."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from veldt.backends.background import Background
from veldt.callbacks import Callback
from veldt.errors import ConfigurationError, UploadFailure
from veldt.telemetry.log_files import log_to_stderr
from veldt.telemetry.result import RunResult
from veldt.zoo import PREFIX, zoo_run

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_REFRESH_SECONDS = 5.0


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
        from veldt.remote.store import RemoteStore
        from veldt.remote.upload import RunUploader

        uploader = RunUploader(RemoteStore(str(self.run_dir)), self.path, keep, log_to_stderr)
        uploader.begin()
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


def is_remote(run_dir: str | Path | None) -> bool:
    """Whether a run directory is a URL: s3://..., gs://..., file://... and the like."""
    return isinstance(run_dir, str) and _URL.match(run_dir) is not None


def run_location(run_dir: str | None, base: Path) -> RunLocation:
    """Where a run is or will be; a remote run is downloaded."""
    if run_dir is not None and run_dir.startswith(PREFIX):
        raise ConfigurationError(f"{run_dir} cannot be resumed; train with --from {run_dir}")
    if not is_remote(run_dir):
        return RunLocation(run_dir, None if run_dir is None else base / run_dir)
    from veldt.remote.download import download_run
    from veldt.remote.store import RemoteStore

    store = RemoteStore(str(run_dir))
    local = local_copy(store.url)
    download_run(store, local, log_to_stderr)
    return RunLocation(store.url, local)


def local_run(run_dir: str | Path, checkpoint: str | int | None = None) -> Path:
    """The directory of a run to read from; the files needed of a remote run are downloaded."""
    if str(run_dir).startswith(PREFIX):
        return zoo_run(str(run_dir))
    if not is_remote(run_dir):
        return Path(run_dir)
    from veldt.remote.download import download_copy
    from veldt.remote.store import RemoteStore

    store = RemoteStore(str(run_dir))
    local = local_copy(store.url, "copies")
    download_copy(store, local, log_to_stderr, checkpoint)
    return local


def follow_run(run_dir: str) -> Path:
    """As `local_run`; files of a remote run are kept up to date until this process ends."""
    local = local_run(run_dir)
    if is_remote(run_dir):
        from veldt.remote.download import refresh_files
        from veldt.remote.store import RemoteStore, StoreError

        store = RemoteStore(run_dir)

        def refresh() -> NoReturn:
            while True:
                time.sleep(_REFRESH_SECONDS)
                with suppress(StoreError, OSError):  # readers then see the last state
                    refresh_files(store, local)

        Background(refresh)
    return local


def local_copy(url: str, purpose: str = "runs") -> Path:
    """Local directory for the files of a remote run, in XDG_CACHE_HOME."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[:60]
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return Path(cache).absolute() / "veldt" / purpose / f"{name}-{digest}"
