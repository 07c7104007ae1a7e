# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all."""

from __future__ import annotations

import os

import pytest

from veldt.files import write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path, durable):
    path = tmp_path / "result.json"
    for text in ("long and old", "new"):
        write_whole(path, text, durable)
        assert path.read_text(encoding="utf-8") == text
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["result.json"]
