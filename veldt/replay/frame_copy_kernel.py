# SPDX-License-Identifier: Apache-2.0
"""Compiled gather of frames with stores that bypass the caches.

A batch of stacked frames is larger than the caches and is read by another process or a device: not
fetching the lines that are about to be overwritten saves a third of the time.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

WORD_BYTES, LINE_BYTES = 16, 64


@intrinsic
def _stream_word(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy WORD_BYTES from address to address; the target is aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.VectorType(ir.IntType(64), 2)
        pointers = [builder.inttoptr(address, word.as_pointer()) for address in arguments]
        value = builder.load(pointers[1], align=1)
        store = builder.store(value, pointers[0], align=WORD_BYTES)
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", mark)

    return types.void(types.uintp, types.uintp), generate


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address that will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        read, keep_briefly, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(function, [pointer, read, keep_briefly, data])

    return types.void(types.uintp), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    """Streamed stores are not ordered by themselves: finish them before a slot is handed over."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")

    return types.void(), generate


@numba.njit(cache=True)
def gather(frames: int, frame_bytes: int, places: np.ndarray, out: int) -> None:
    """Copy the frames at `places` one behind the other; `frames` and `out` are addresses."""
    for position in range(places.size):
        source = np.uintp(frames + places[position] * frame_bytes)
        target = np.uintp(out + position * frame_bytes)
        ahead = np.uintp(frames + places[min(position + 1, places.size - 1)] * frame_bytes)
        for offset in range(0, frame_bytes, WORD_BYTES):
            if offset % LINE_BYTES == 0:
                _prefetch(ahead + np.uintp(offset))  # type: ignore[call-arg]
            _stream_word(target + np.uintp(offset), source + np.uintp(offset))  # type: ignore[call-arg]
    _fence()  # type: ignore[call-arg]
