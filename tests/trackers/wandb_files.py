# SPDX-License-Identifier: Apache-2.0
"""Reads the files that wandb writes without a server: a log of records, as LevelDB has them."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_HEADER_BYTES, _BLOCK_BYTES = 7, 32_768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    """As far as the file goes: who wrote it may have been killed."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, begun = _HEADER_BYTES, b""
    while place + _HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + _HEADER_BYTES])
        place += _HEADER_BYTES
        begun += data[place : place + size]
        place += size
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(begun)
            begun = b""


def history(path: Path) -> list[dict[str, Any]]:
    """The logged lines, by name."""
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.history.item}
        for row in records(path)
        if row.WhichOneof("record_type") == "history"
    ]


def run_id(path: Path) -> str:
    return next(row.run.run_id for row in records(path) if row.WhichOneof("record_type") == "run")
