# SPDX-License-Identifier: Apache-2.0
"""A folder in an object store, through fsspec, whose calls are retried and end within a bound."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from veldt.backends.background import Background
from veldt.errors import ConfigurationError, extra_module

_TRY_SECONDS = 20.0  # one attempt, besides the time for its bytes
_SLOWEST_BYTES_PER_SECOND = 1e6
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 3.0
_S3 = {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 2}}


class StoreError(ConfigurationError):
    """A call to a store failed in every attempt."""


class RemoteStore:
    """Files by name below one URL. Credentials come from the store's environment variables.

    No call is retried after `patience_seconds` (VELDT_STORE_SECONDS, 60). One attempt ends after
    20 s, plus a second for each megabyte."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.patience_seconds = float(os.environ.get("VELDT_STORE_SECONDS", 60.0))
        scheme, _, rest = self.url.partition("://")
        if "@" in rest.partition("/")[0]:  # files of the run contain the URL
            raise ConfigurationError(
                "a --run-dir must not carry a user or a password; give them in the store's own"
                " environment variables, such as AWS_ACCESS_KEY_ID"
            )
        if not rest.strip("/"):
            raise ConfigurationError(
                f"{url} names no folder; use for instance s3://bucket/runs/first"
            )
        # Listings are not cached, because other processes write too.
        settings: dict[str, Any] = {"use_listings_cache": False}
        if scheme.lower() in ("s3", "s3a"):
            settings["config_kwargs"] = _S3
        if scheme.lower() in ("file", "local"):
            settings["auto_mkdir"] = True
        fsspec = extra_module("fsspec", f"{scheme}:// needs fsspec", extra="remote")
        try:
            self._files, root = fsspec.url_to_fs(self.url, **settings)
        except ImportError as error:
            text = " ".join(str(error).split())
            raise ConfigurationError(f"{scheme}:// needs another package: {text}") from error
        except ValueError as error:
            raise ConfigurationError(
                f"{url} cannot be used as a run directory ({error}); s3://, gs:// and file:// are"
                " known"
            ) from error
        self._root = str(root).rstrip("/")

    def write(self, name: str, content: bytes) -> None:
        self._call(f"write {name}", lambda: self._files.pipe_file(self._path(name), content))

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if there is no such file."""
        path = self._path(name)
        found: bytes | None = self._call(
            f"read {name}", lambda: self._files.cat_file(path), absent=None
        )
        return found

    def upload(self, path: Path, name: str) -> None:
        target = self._path(name)
        size = path.stat().st_size
        self._call(f"upload {name}", lambda: self._files.put_file(str(path), target), size)

    def download(self, name: str, path: Path, size: int, grows: bool = False) -> None:
        """Download a file of `size` bytes; with `grows` it may have another size by now."""

        def copy() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A name of its own, because an earlier attempt may still be writing.
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            try:
                self._files.get_file(self._path(name), str(draft))
                if not grows and draft.stat().st_size != size:
                    raise OSError(f"{draft.stat().st_size} of {size} bytes came")
                os.replace(draft, path)
            finally:
                draft.unlink(missing_ok=True)

        self._call(f"download {name}", copy, size)

    def listing(self, folder: str = "") -> dict[str, int]:
        """Name and size of every file below a folder."""
        where = f"{self._root}/{folder}".rstrip("/")

        def find() -> dict[str, int]:
            found = self._files.find(where, detail=True)
            names = {path[len(self._root) :].lstrip("/"): entry for path, entry in found.items()}
            return {name: int(entry["size"] or 0) for name, entry in names.items()}

        listing: dict[str, int] = self._call(f"list {folder or 'files'}", find, absent={})
        return listing

    def remove(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        if paths:
            self._call("delete old files", lambda: self._files.rm(paths))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(self, what: str, work: Callable[[], Any], size: int = 0, absent: Any = ...) -> Any:
        """Call `work` until it succeeds; returns `absent`, if given, when the file is missing."""
        last_start = time.monotonic() + self.patience_seconds
        limit = min(_TRY_SECONDS, self.patience_seconds) + size / _SLOWEST_BYTES_PER_SECOND
        pause = _FIRST_PAUSE_SECONDS
        while True:
            attempt = Background(work)
            # An attempt that hangs is abandoned, because a thread cannot be stopped.
            trouble: Exception = TimeoutError(f"no answer in {limit:.0f} s")
            if attempt.done(limit):
                try:
                    return attempt.result()
                except FileNotFoundError as error:
                    if absent is not ...:
                        return absent
                    trouble, last_start = error, 0.0  # no such bucket: a retry would not help
                except Exception as error:
                    trouble = error
            if time.monotonic() + pause >= last_start:
                text = " ".join(str(trouble).split())[:300]
                raise StoreError(
                    f"{self.url} could not {what} ({type(trouble).__name__}: {text})"
                ) from trouble
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
