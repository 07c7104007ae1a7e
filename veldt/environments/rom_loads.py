# SPDX-License-Identifier: Apache-2.0
"""Loads of Atari ROMs without a table that nobody reads.

Each load of ale-py, and each environment loads twice, fills a table of blended colours: nine tenths
of its 0.1 s, so that 64 environments keep a core busy for 15 s. The table is read only with ALE's
setting color_averaging, which its vector environment does not have. The call is therefore pointed
at a function that does nothing, as the dynamic linker would do for a library loaded earlier. That
is only done to versions whose frames were compared; others load as they always did."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_COMPARED_VERSIONS = ("0.12.1",)
_FUNCTION = b"_ZN3ale13PhosphorBlend18makeAveragePaletteEv"
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_DYNAMIC_SYMBOLS, _RELOCATIONS = 11, 4  # types of sections
_JUMP_SLOTS = {62: 7, 183: 1026}  # by machine: x86-64 and AArch64


@cache
def skip_unused_tables() -> bool:
    """For all later loads of this process. False where the library is built in another way; ROMs
    are then loaded as slowly as ever."""
    if sys.platform != "linux" or not _is_known():
        return False
    with suppress(ImportError, OSError, ValueError, struct.error, AttributeError):
        path = Path(import_module("ale_py._ale_py").__file__ or "").resolve()
        slots = [_first_address(path) + offset for offset in _slots(path.read_bytes())]
        if slots and all(map(_is_writable, slots)):
            nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)
            for slot in slots:
                ctypes.c_void_p.from_address(slot).value = nothing.value
            return True
    return False


def _is_known() -> bool:
    with suppress(PackageNotFoundError):
        return version("ale-py") in _COMPARED_VERSIONS
    return False


def _slots(library: bytes) -> Iterator[int]:
    """Where a library keeps the address that it calls for the function, from its start on."""
    if not library.startswith(_ELF64_LITTLE):
        return
    jump_slot = _JUMP_SLOTS.get(struct.unpack_from("<H", library, 18)[0])
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count = struct.unpack_from("<HH", library, 58)
    # Of each: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + i * size) for i in range(count)]
    for section in sections:
        if section[1] != _RELOCATIONS or sections[section[6]][1] != _DYNAMIC_SYMBOLS:
            continue
        symbols = sections[section[6]]
        names = sections[symbols[6]]
        for offset, info, _ in struct.iter_unpack("<QQq", library[section[4] :][: section[5]]):
            if info & 0xFFFFFFFF == jump_slot:
                symbol = symbols[4] + (info >> 32) * symbols[9]
                name = names[4] + struct.unpack_from("<I", library, symbol)[0]
                if library.startswith(_FUNCTION + b"\0", name):
                    yield offset


def _maps() -> Iterator[tuple[int, int, str, int, str]]:
    """First and last address, permissions, offset in the file, and path of what is mapped here."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, offset, *rest = line.split(maxsplit=5)
        first, last = (int(address, 16) for address in addresses.split("-"))
        yield first, last, permissions, int(offset, 16), rest[2] if len(rest) > 2 else ""


def _first_address(path: Path) -> int:
    return min(first for first, _, _, offset, file in _maps() if (file, offset) == (str(path), 0))


def _is_writable(address: int) -> bool:
    return any(first <= address < last and "w" in may for first, last, may, _, _ in _maps())
