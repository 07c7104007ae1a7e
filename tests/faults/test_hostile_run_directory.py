# SPDX-License-Identifier: Apache-2.0
"""A run directory from a stranger: no file in it runs code when it is resumed or evaluated."""

import json
import os
import pickle
import shutil
from pathlib import Path

from veldt.cli import main as cli


class Canary:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def try_all(run_dir: Path) -> list[int]:
    """The exit codes of what reads a run directory. No exception is let out."""
    return [
        cli.main(["evaluate", str(run_dir), "--episodes", "1"]),
        cli.main(["resume", str(run_dir), "--total-env-steps", "400", "--quiet"]),
    ]


def files_of(run_dir: Path) -> list[Path]:
    found = sorted(path for path in run_dir.rglob("*") if path.is_file())
    return [path.relative_to(run_dir) for path in found if path.name != ".lock"]


def test_pickles_in_place_of_any_file_never_run(short_run, tmp_path):
    canary = tmp_path / "canary"
    payload = pickle.dumps(Canary(canary))
    for name in files_of(short_run):
        run_dir = shutil.copytree(short_run, tmp_path / "copy")
        (run_dir / name).write_bytes(payload)
        codes = try_all(run_dir)
        assert set(codes) <= {0, 2}, (name, codes)
        if "checkpoint" in str(name):
            assert codes == [2, 2], name  # the only checkpoint is damaged
        shutil.rmtree(run_dir)
    assert not canary.exists()


def test_expressions_in_a_configuration_are_not_evaluated(short_run, tmp_path):
    canary = tmp_path / "canary"
    text = f"__import__('os').mkdir({str(canary)!r})"
    tags = [text, f"!!python/object/apply:os.mkdir [{str(canary)!r}]", f"$(mkdir {canary})"]
    original = json.loads((short_run / "config.json").read_text())
    tried = 0
    for part in ("options", "config"):
        for field in original[part]:
            for attack in tags:
                changed = json.loads(json.dumps(original))
                changed[part][field] = attack
                run_dir = tmp_path / "copy"
                run_dir.mkdir(exist_ok=True)
                (run_dir / "config.json").write_text(json.dumps(changed))
                assert cli.main(["resume", str(run_dir)]) == 2, field
                tried += 1
                assert not canary.exists(), field
