# SPDX-License-Identifier: Apache-2.0
"""A folder in an object store, through fsspec. Every call is repeated and ends within a bound: a
store may answer late, wrongly or never."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from veldt.backends.background import Background
from veldt.errors import ConfigurationError
from veldt.remote.places import checked_url

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
_TRY_SECONDS = 20.0  # one attempt, besides the time for its bytes
_SLOWEST_BYTES_PER_SECOND = 1e6  # what is slower counts as dead
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 3.0
_S3 = {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 2}}


class StoreError(RuntimeError):
    """A store did not do what was asked, for as long as it was asked."""


class RemoteStore:
    """Files by their names below one URL. `patience_seconds`: after these no call is tried again;
    an attempt ends after 20 s at most, and a second more for each megabyte."""

    def __init__(self, url: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.url, self.patience_seconds = checked_url(url), patience_seconds
        self._files, root = _opened(self.url)
        self._root = root.rstrip("/")

    def write(self, name: str, content: bytes) -> None:
        self._call(f"write {name}", lambda: self._files.pipe_file(self._path(name), content))

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""
        try:
            path = self._path(name)
            work = partial(self._files.cat_file, path)
            return bytes(self._call(f"read {name}", work, may_be_absent=True))
        except FileNotFoundError:
            return None

    def upload(self, path: Path, name: str) -> None:
        target = self._path(name)
        size = path.stat().st_size
        self._call(f"upload {name}", lambda: self._files.put_file(str(path), target), size)

    def download(self, name: str, path: Path, size: int, grows: bool = False) -> None:
        """`size` is how many bytes there should be; `grows`: there may be others by now."""

        def copy() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._path(name), str(path))
            if not grows and path.stat().st_size != size:
                raise OSError(f"{path.stat().st_size} of {size} bytes came")

        self._call(f"download {name}", copy, size)

    def listing(self, folder: str = "") -> dict[str, int]:
        """Name and size of every file below a folder."""
        where = f"{self._root}/{folder}".rstrip("/")

        def find() -> dict[str, int]:
            found = self._files.find(where, detail=True)
            names = {path[len(self._root) :].lstrip("/"): entry for path, entry in found.items()}
            return {name: int(entry["size"] or 0) for name, entry in names.items()}

        try:
            return self._call(f"list {folder or 'files'}", find, may_be_absent=True)
        except FileNotFoundError:
            return {}

    def remove(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        if paths:
            self._call("delete what is old", lambda: self._files.rm(paths))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(
        self, what: str, work: Callable[[], T], size: int = 0, may_be_absent: bool = False
    ) -> T:
        """Raises StoreError for what lasts, and FileNotFoundError where that is an answer."""
        last_start = time.monotonic() + self.patience_seconds
        limit = min(_TRY_SECONDS, self.patience_seconds) + size / _SLOWEST_BYTES_PER_SECOND
        pause = _FIRST_PAUSE_SECONDS
        while True:
            attempt = Background(work)
            # An attempt that hangs is left to its own end: nothing can stop a thread.
            trouble: Exception = TimeoutError(f"no answer in {limit:.0f} s")
            if attempt.done(limit):
                try:
                    return attempt.result()
                except FileNotFoundError as error:
                    if may_be_absent:
                        raise
                    trouble, last_start = error, 0.0  # no bucket: asking again is no use
                except Exception as error:
                    trouble = error
            if time.monotonic() + pause >= last_start:
                text = " ".join(str(trouble).split())[:300]
                raise StoreError(
                    f"{self.url} could not {what} ({type(trouble).__name__}: {text})"
                ) from trouble
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _opened(url: str) -> tuple[Any, str]:
    """The file system and the path in it."""
    scheme = url.partition("://")[0].lower()
    # What says where a store is and who asks; another value needs another client.
    known = ("AWS_", "FSSPEC_", "GOOGLE_", "GCSFS_", "STORAGE_", "AZURE_")
    where = tuple(sorted(item for item in os.environ.items() if item[0].startswith(known)))
    try:
        files = _file_system(scheme, where)
        return files, files._strip_protocol(url)
    except ConfigurationError:
        raise
    except ImportError as error:
        text = " ".join(str(error).split())
        raise ConfigurationError(f"{scheme}:// needs another package: {text}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{url} cannot be used as a run directory ({error}); s3://, gs:// and file:// are known"
        ) from error


@lru_cache(maxsize=8)
def _file_system(scheme: str, where: tuple[tuple[str, str], ...]) -> Any:
    """Made once: a client of S3 takes a good part of a second. Listings are never remembered, since
    others write, too."""
    try:
        import fsspec
    except ImportError:
        raise ConfigurationError(
            f'a run directory like {scheme}://... needs an extra: pip install "veldt[remote]"'
        ) from None
    settings: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme in ("s3", "s3a"):
        settings["config_kwargs"] = _S3
    if scheme in ("file", "local"):
        settings["auto_mkdir"] = True
    return fsspec.filesystem(scheme, **settings)
