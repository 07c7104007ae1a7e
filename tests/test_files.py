# SPDX-License-Identifier: Apache-2.0
"""A file is replaced whole or not at all."""

import os

import pytest

from veldt.files import write_atomically


def test_a_failure_leaves_the_old_content_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new", durable=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
