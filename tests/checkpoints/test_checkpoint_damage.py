# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile checkpoints: every one is noticed, none is believed, none runs code."""

import hashlib
import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_contents import assert_whole, save, store_in

from veldt.checkpoints.format import _manifest_bytes
from veldt.checkpoints.store import CheckpointError

LEARNER = "0000-learner-0.safetensors"
OLDER, NEWER = "checkpoint-000000000100", "checkpoint-000000000200"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, of steps 100 and 200."""
    directory = tmp_path_factory.mktemp("pristine")
    store = store_in(directory)
    save(store, 100)
    save(store, 200)
    return directory


def _any_file(checkpoint: Path, random: np.random.Generator) -> Path:
    return random.choice(sorted(checkpoint.iterdir()))


def _truncate(checkpoint: Path, random: np.random.Generator) -> None:
    file = _any_file(checkpoint, random)
    os.truncate(file, random.integers(file.stat().st_size))


def _flip_bit(checkpoint: Path, random: np.random.Generator) -> None:
    file = _any_file(checkpoint, random)
    content = bytearray(file.read_bytes())
    content[random.integers(len(content))] ^= 1 << random.integers(8)
    file.write_bytes(content)


def _append(checkpoint: Path, random: np.random.Generator) -> None:
    with open(_any_file(checkpoint, random), "ab") as file:
        file.write(b"more")


def _remove(checkpoint: Path, random: np.random.Generator) -> None:
    _any_file(checkpoint, random).unlink()


def _take_file_of_another_step(checkpoint: Path, random: np.random.Generator) -> None:
    name = ("manifest.json", "meta.json", LEARNER)[random.integers(3)]
    shutil.copy(checkpoint.parent.parent / "checkpoint-000000000300" / name, checkpoint / name)


MUTATIONS: list[Callable[[Path, np.random.Generator], None]] = [
    _truncate, _append, _flip_bit, _remove, _take_file_of_another_step,
]  # fmt: skip


def forge(checkpoint: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the manifest and make every size and hash fit, as an attacker would."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    del manifest["sha256"]
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    edit(manifest)
    (checkpoint / "manifest.json").write_bytes(_manifest_bytes(manifest))


def test_mutated_checkpoints_are_all_noticed(pristine, tmp_path):
    run = tmp_path / "run"
    save(store_in(tmp_path), 300)
    for seed in range(120):
        random = np.random.default_rng(seed)
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(pristine, run)
        (run / ".tmp-checkpoint-000000000300").mkdir()
        mutate = MUTATIONS[seed % len(MUTATIONS)]
        mutate(run / NEWER, random)
        store = store_in(run)
        assert assert_whole(store.newest()) == 100, (seed, mutate.__name__)
        assert [problem.split(":")[0] for problem in store.problems] == [NEWER]

        MUTATIONS[random.integers(len(MUTATIONS))](run / OLDER, random)
        with pytest.raises(CheckpointError, match="starting afresh would hide that"):
            store.newest()
        assert len(store.problems) == 2


def test_damage_after_opening_is_noticed_when_loading(pristine, tmp_path):
    run = shutil.copytree(pristine, tmp_path / "run")
    checkpoint = store_in(run).newest()
    for part, pattern in (("learner-0", "*learner*"), ("replay-0", "*.chunk")):
        file = next(checkpoint.path.glob(pattern))
        file.write_bytes(file.read_bytes()[:-1] + b"\x55")
        with pytest.raises(CheckpointError, match="does not match its hash"):
            checkpoint.load(part)


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def attack(checkpoint: Path) -> None:
        (checkpoint / name).write_bytes(content)
        forge(checkpoint, lambda manifest: None)

    return attack


def _large(**changes: Any) -> Callable[[Path], None]:
    """Change the description of the chunked array."""
    return lambda checkpoint: forge(
        checkpoint, lambda manifest: manifest["parts"]["replay-0"]["large"]["row"].update(changes)
    )


def _rename_in_manifest(target: str) -> Callable[[Path], None]:
    """Point the learner's part at a file elsewhere that exists and has the right hash."""

    def edit(manifest: dict[str, Any]) -> None:
        old = manifest["parts"]["learner-0"]["file"]
        manifest["files"][target] = manifest["files"].pop(old)
        manifest["parts"]["learner-0"]["file"] = target

    def attack(checkpoint: Path) -> None:
        shutil.copy(checkpoint / LEARNER, checkpoint.parent / "outside")
        forge(checkpoint, edit)

    return attack


def _symlink(checkpoint: Path) -> None:
    (checkpoint / LEARNER).rename(checkpoint.parent / "outside")
    (checkpoint / LEARNER).symlink_to("../outside")


def _symlinked_directory(checkpoint: Path) -> None:
    checkpoint.rename(checkpoint.parent / "outside")
    checkpoint.symlink_to("outside")


def _fifo(checkpoint: Path) -> None:
    (checkpoint / LEARNER).unlink()
    os.mkfifo(checkpoint / LEARNER)


def _safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def _many(count: int) -> bytes:
    entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    return json.dumps({str(number): entry for number in range(count)}).encode()


def _one(**changes: Any) -> bytes:
    entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} | changes
    return _safetensors(json.dumps({"weights": entry}).encode())


NESTED = b"[" * 100_000
ATTACKS: dict[str, Callable[[Path], None]] = {
    "header of 2**60 bytes": _write(LEARNER, _safetensors(b"{}", 2**60)),
    "header of 17 MB": _write(LEARNER, _safetensors(b"{" + b" " * 17_000_000 + b"}")),
    "header with too many arrays": _write(LEARNER, _safetensors(_many(10_001))),
    "array of 2**62 bytes": _write(LEARNER, _one(shape=[2**62], data_offsets=[0, 2**62])),
    "negative shape": _write(LEARNER, _one(shape=[-1])),
    "object dtype": _write(LEARNER, _one(dtype="O")),
    "meta with deep nesting": _write("meta.json", NESTED),
    "meta of 17 MB": _write("meta.json", b'{"a":"' + b"x" * 17_000_000 + b'"}'),
    "meta that is no object": _write("meta.json", b"[]"),
    "chunked array of 2**62 bytes": _large(shape=[2**62]),
    "chunked array of objects": _large(dtype="object"),
    "chunk that is a path": _large(chunks=["../../outside"]),
    "chunk listed twice": _large(chunks=["0001-replay-0.0000.000000.chunk"] * 4),
    "array that is not there": lambda path: forge(
        path, lambda manifest: manifest["parts"]["learner-0"]["arrays"].append("more")
    ),
    "file that no part uses": lambda path: forge(
        path, lambda manifest: manifest["parts"].pop("learner-0")
    ),
    "relative path": _rename_in_manifest("../outside"),
    "newer format": lambda path: forge(path, lambda manifest: manifest.update(format=2)),
    "symbolic link": _symlink,
    "symbolic link for a directory": _symlinked_directory,
    "pipe": _fifo,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_checkpoint_is_refused_in_bounded_memory(pristine, tmp_path, attack):
    run = shutil.copytree(pristine, tmp_path / "run")
    ATTACKS[attack](run / NEWER)
    store = store_in(run)
    tracemalloc.start()
    try:
        assert assert_whole(store.newest()) == 100
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        assert peak < 64
    finally:
        tracemalloc.stop()
    assert len(store.problems) == 1
