# SPDX-License-Identifier: Apache-2.0
"""The files of one checkpoint: safetensors, raw chunks, JSON, and a manifest of all.

The reader checks names, counts, sizes, hashes and file types before use. Bytes are hashed and
decoded from the same read, and nothing in a file can name code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as to_safetensors

from veldt.files import sync_directory

FORMAT = 1
MANIFEST = "manifest.json"
META = "meta.json"
MAX_ARRAYS = 10_000
MAX_JSON_BYTES = 16 * 2**20
"""Of one JSON file or safetensors header; parsing takes up to 20 times as much memory."""
_MAX_NAME_LENGTH = 200
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}", re.ASCII)
_DTYPES = {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64"} | {
    f"{kind[0].upper()}{bits}": f"{kind}{bits}"
    for kind in ("int", "uint")
    for bits in (8, 16, 32, 64)
}
_Arrays = dict[str, np.ndarray]

DAMAGE = (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, SafetensorError)
"""Exceptions of reading untrusted files; each means that the checkpoint is not valid."""


def checked_arrays(part: str, arrays: Mapping[str, Any]) -> _Arrays:
    """Contiguous little-endian arrays of a part; ValueError names what cannot be stored."""
    if not 0 < len(part) <= _MAX_NAME_LENGTH or ".." in part or re.search(r"[/\\\x00]", part):
        raise ValueError(f"'{part}' cannot name a part")
    if len(arrays) > MAX_ARRAYS:
        raise ValueError(f"part '{part}' has {len(arrays)} arrays; at most {MAX_ARRAYS} fit")
    checked = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.name not in _DTYPES.values():
            raise ValueError(f"'{name}' of part '{part}' is {array.dtype}; only numbers are stored")
        # safetensors keeps its own entry under that key.
        if name == "__metadata__" or len(name.encode()) > _MAX_NAME_LENGTH:
            raise ValueError(f"'{name[:_MAX_NAME_LENGTH]}' of part '{part}' cannot name an array")
        # Not ascontiguousarray, which turns a scalar into a vector.
        checked[name] = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return checked


def json_bytes(value: Any) -> bytes:
    """Indented JSON, within the limit of size."""
    encoded = json.dumps(value, indent=1).encode()
    if len(encoded) > MAX_JSON_BYTES:
        raise ValueError(f"{len(encoded)} bytes of JSON; at most {MAX_JSON_BYTES} fit")
    return encoded


def _manifest_bytes(body: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json_bytes(body)).hexdigest()
    return json_bytes(body | {"sha256": digest})


class CheckpointWriter:
    """Fills one new directory."""

    def __init__(self, directory: Path, chunk_bytes: int) -> None:
        self._directory, self._chunk_bytes = directory, chunk_bytes
        self._files: dict[str, dict[str, Any]] = {}

    def write(self, step: int, parts: Mapping[str, _Arrays], encoded_meta: bytes) -> None:
        """All files, each made durable, the manifest last."""
        entries = {
            part: self._add_part(f"{position:04d}-{_UNUSUAL.sub('_', part)[:80]}", arrays)
            for position, (part, arrays) in enumerate(parts.items())
        }
        self._add(META, encoded_meta)
        body = {"format": FORMAT, "step": step, "files": self._files, "parts": entries}
        _write_durably(self._directory / MANIFEST, _manifest_bytes(body))
        sync_directory(self._directory)

    def _add_part(self, stem: str, arrays: _Arrays) -> dict[str, Any]:
        large = {
            name: self._add_chunks(f"{stem}.{position:04d}", array)
            for position, (name, array) in enumerate(arrays.items())
            if array.nbytes > self._chunk_bytes
        }
        small = {name: array for name, array in arrays.items() if name not in large}
        self._add(f"{stem}.safetensors", to_safetensors(small))
        return {"file": f"{stem}.safetensors", "arrays": list(arrays), "large": large}

    def _add_chunks(self, stem: str, array: np.ndarray) -> dict[str, Any]:
        raw = array.reshape(-1).view(np.uint8)
        chunks = []
        for index, start in enumerate(range(0, raw.size, self._chunk_bytes)):
            chunks.append(f"{stem}.{index:06d}.chunk")
            # A copy, because another process may write to the array between hash and write.
            self._add(chunks[-1], raw[start : start + self._chunk_bytes].tobytes())
        return {"dtype": array.dtype.name, "shape": list(array.shape), "chunks": chunks}

    def _add(self, name: str, content: bytes) -> None:
        _write_durably(self._directory / name, content)
        digest = hashlib.sha256(content).hexdigest()
        self._files[name] = {"size": len(content), "sha256": digest}


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, checked for completeness and form; raises one of DAMAGE."""
    with _open_file(directory, MANIFEST) as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    if len(raw) > MAX_JSON_BYTES:
        raise ValueError(f"{MANIFEST} is larger than {MAX_JSON_BYTES} bytes")
    body = json.loads(raw)
    if body["format"] != FORMAT:
        raise ValueError(f"format {body['format']!r}; this version reads format {FORMAT}")
    del body["sha256"]
    if _manifest_bytes(body) != raw:
        raise ValueError(f"{MANIFEST} does not match its own hash")
    for name, entry in body["files"].items():
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise ValueError(f"{MANIFEST} lists a file '{name}'")
        if type(entry["size"]) is not int or type(entry["sha256"]) is not str:
            raise ValueError(f"{MANIFEST} is malformed at '{name}'")
    return body


def verify(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and meta of a checkpoint after checking every byte; raises one of DAMAGE."""
    if not stat.S_ISDIR(os.lstat(directory).st_mode):
        raise ValueError("not a directory")
    for name in os.listdir(directory):
        if stat.S_ISLNK(os.lstat(directory / name).st_mode):
            raise ValueError(f"{name} is a symbolic link")
    manifest = read_manifest(directory)
    if manifest["files"][META]["size"] > MAX_JSON_BYTES:
        raise ValueError(f"{META} is larger than {MAX_JSON_BYTES} bytes")
    meta = json.loads(_read_file(directory, manifest, META))
    if type(meta) is not dict:
        raise ValueError(f"{META} is not an object")
    used = {META}
    for part, entry in manifest["parts"].items():
        small = _decoded(_read_file(directory, manifest, entry["file"]))
        if sorted([*small, *entry["large"]]) != sorted(entry["arrays"]):
            raise ValueError(f"part '{part}' does not hold the arrays it should")
        used.add(entry["file"])
        for name, large in entry["large"].items():
            _checked_chunks(manifest, name, large)
            for chunk in large["chunks"]:
                _hash_file(directory, manifest, chunk)
            used.update(large["chunks"])
    if used != set(manifest["files"]):
        raise ValueError(f"{MANIFEST} lists files that no part uses")
    return manifest, meta


def load_part(directory: Path, manifest: dict[str, Any], part: str) -> _Arrays:
    """Writable arrays of one part, in the order they were saved; raises one of DAMAGE."""
    entry = manifest["parts"][part]
    arrays = _decoded(_read_file(directory, manifest, entry["file"]))
    for name, large in entry["large"].items():
        dtype, shape = _checked_chunks(manifest, name, large)
        arrays[name] = np.empty(shape, dtype)
        target, start = arrays[name].reshape(-1).view(np.uint8), 0
        for chunk in large["chunks"]:
            size = manifest["files"][chunk]["size"]
            _hash_file(directory, manifest, chunk, target[start : start + size])
            start += size
    return {name: arrays[name] for name in entry["arrays"]}


def _checked_chunks(
    manifest: dict[str, Any], name: str, large: dict[str, Any]
) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of a chunked array, which must account for exactly the bytes on disk."""
    dtype, shape = large["dtype"], tuple(large["shape"])
    if dtype not in _DTYPES.values() or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"'{name}' has dtype {dtype!r} and shape {shape!r}")
    size = sum(manifest["files"][chunk]["size"] for chunk in large["chunks"])
    if size != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"'{name}' has {size} bytes, which do not fill its shape {shape!r}")
    return dtype, shape


def _open_file(directory: Path, name: str, size: int | None = None) -> io.BufferedReader:
    # Non-blocking, so that a FIFO put in place of a file cannot hang the reader.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.fdopen(os.open(directory / name, flags), "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and size in (None, status.st_size):
        return file
    file.close()
    raise ValueError(f"{name} has {status.st_size} bytes, not {size}, or is not a plain file")


def _read_file(directory: Path, manifest: dict[str, Any], name: str) -> bytes:
    entry = manifest["files"][name]
    with _open_file(directory, name, entry["size"]) as file:
        content = file.read(entry["size"])
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} does not match its hash")
    return content


def _hash_file(
    directory: Path, manifest: dict[str, Any], name: str, into: np.ndarray | None = None
) -> None:
    """Check one file in a single pass; with `into`, keep the bytes that were checked."""
    entry = manifest["files"][name]
    with _open_file(directory, name, entry["size"]) as file:
        if into is None:
            digest = hashlib.file_digest(file, "sha256")
        else:
            file.readinto(into.data)
            digest = hashlib.sha256(into.data)
    if digest.hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} does not match its hash")


def _decoded(content: bytes) -> _Arrays:
    """Arrays of a safetensors file, after bounds that the format itself does not set."""
    header_bytes = int.from_bytes(content[:8], "little")
    if not 0 < header_bytes <= min(MAX_JSON_BYTES, len(content) - 8):
        raise ValueError(f"a safetensors header of {header_bytes} bytes")
    if len(json.loads(content[8 : 8 + header_bytes])) > MAX_ARRAYS:
        raise ValueError(f"more than {MAX_ARRAYS} arrays in one file")
    return {
        name: np.frombuffer(view["data"], _DTYPES[view["dtype"]]).reshape(view["shape"])
        for name, view in deserialize(content)
    }
