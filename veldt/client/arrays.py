# SPDX-License-Identifier: Apache-2.0
"""Numbers to bytes and back, without NumPy; its arrays are taken all the same."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

CODES = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}


def packed(value: Any, dtype: str, shape: Sequence[int], name: str) -> bytes:
    """The bytes of an array of `shape`: little-endian, in C order. `value` is an array of NumPy,
    nested sequences of numbers, or bytes that are that already."""
    data = _bytes_of(value, dtype)
    expected = prod(shape) * struct.calcsize(f"<{CODES[dtype]}")
    if len(data) != expected:
        raise ValueError(
            f"the {name} has {len(data):,} bytes, but {tuple(shape)} numbers of {dtype} are"
            f" {expected:,}"
        )
    return data


def _bytes_of(value: Any, dtype: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "astype") and value.dtype != object:
        return value.astype(f"<{_short(dtype)}").tobytes()
    if not isinstance(value, Iterable):
        return struct.pack(f"<{CODES[dtype]}", value)
    entries = list(value)
    if any(isinstance(entry, Iterable) for entry in entries):
        return b"".join(_bytes_of(entry, dtype) for entry in entries)
    return struct.pack(f"<{len(entries)}{CODES[dtype]}", *entries)


def _short(dtype: str) -> str:
    """NumPy's letter and size, which takes an order of bytes before it."""
    kind = {"b": "b", "i": "i", "u": "u", "f": "f"}[dtype[0]]
    return f"{kind}{struct.calcsize('<' + CODES[dtype])}"


def unpacked(data: bytes, dtype: str, shape: Sequence[int]) -> Any:
    """Nested lists of `shape`; a number where it is ()."""
    numbers = list(struct.unpack(f"<{prod(shape)}{CODES[dtype]}", data))
    for size in reversed(shape[1:]):
        numbers = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return numbers if shape else numbers[0]
