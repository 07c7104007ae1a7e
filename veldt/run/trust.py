# SPDX-License-Identifier: Apache-2.0
"""Whose code a run directory asks to be run.

config.json may name Python files: an architecture, an environment, a network. Training recorded
which files these were; resuming and evaluating run them only while they are the same. That catches
a file that was changed or put there by somebody else. It is no proof of where a directory comes
from, since whoever can write config.json can write the record as well.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from veldt.architectures import is_own
from veldt.errors import ConfigurationError

FLAG = "--trust-code"
_NO_MODULES = ("envpool", "__main__")


def code_of(architecture: str, env: Any, network: Any) -> dict[str, str]:
    """Hash of the files behind each of the names that stands for code; nothing is imported."""
    return {name: _hash(files) for name, files in _sources(architecture, env, network)}


def _hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check_code(config: Path, stored: dict[str, Any]) -> None:
    """Refuse to run what config.json names if it is not what was trained with."""
    options = stored["options"]
    names = (stored["architecture"], options.get("env"), options.get("network"))
    for name, files in _sources(*names):
        problem = _problem(config.parent, name, files, stored.get("code"))
        if problem:
            raise ConfigurationError(
                f"{config} asks to run '{name}', but {problem}; look at it, and"
                f" say {FLAG} if it may run"
            )


def _sources(architecture: Any, env: Any, network: Any) -> Iterator[tuple[str, list[Path]]]:
    """Names that stand for code, and the files that run when it is imported."""
    name = str(architecture)
    if name.endswith(".py"):
        yield name, [Path(name)] if Path(name).is_file() else []
    elif is_own(name):
        yield name, _files_of(name)
    for name in (str(env), str(network)):
        module, colon, _ = name.partition(":")
        if colon and module not in _NO_MODULES:
            yield name, _files_of(module)


def _problem(run_dir: Path, name: str, files: list[Path], recorded: Any) -> str | None:
    inside = [file for file in files if file.resolve().is_relative_to(run_dir.resolve())]
    if inside:
        return f"{inside[0]} lies in the run directory itself"
    if name.partition(":")[0].split(".")[0] in sys.stdlib_module_names:
        return "that is part of Python and neither an environment nor a network"
    if not files:
        return None  # it cannot be found, which importing it will say
    if not isinstance(recorded, dict) or name not in recorded:
        return f"there is no record of {files[-1]} as it was when the run was trained"
    if recorded[name] != _hash(files):
        return f"{files[-1]} is not what it was when the run was trained"
    return None


def _files_of(module: str) -> list[Path]:
    """The file of a module and those of the packages around it."""
    files: list[Path] = []
    path, full = [str(Path.cwd()), *sys.path], ""
    for part in module.split("."):
        full = f"{full}.{part}" if full else part
        spec: ModuleSpec | None = PathFinder.find_spec(full, path)
        if spec is None:
            return files
        if spec.origin is not None and Path(spec.origin).is_file():
            files.append(Path(spec.origin))
        path = list(spec.submodule_search_locations or [])
    return files
