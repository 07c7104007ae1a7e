# SPDX-License-Identifier: Apache-2.0
"""A folder for what the runs of one test leave behind."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of this test have their temporary files. Every run that starts clears away
    what dead ones left, also those of other tests. The path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
