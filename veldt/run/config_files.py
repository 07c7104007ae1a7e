# SPDX-License-Identifier: Apache-2.0
"""Options read from a file: TOML or JSON, or config.json of an earlier run.

Options given on the command line or in Python take precedence over those of a file. A run's
config.json may name Python files: an architecture, an environment, a network. They are imported
only while they are what the run was trained with. That catches files that were changed or put there
later; it does not prove where a directory comes from, because config.json holds the hashes, too.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import is_keyed, validation_error
from veldt.options.fields import OptionField, check_kinds, option_fields, unknown_option

CONFIG_FILE = "config.json"
TRUST_FLAG = "--trust-code"
_NOT_REPEATED = {"dashboard", "json", "quiet", "run_dir"}
"""Options about where a run is stored and what it prints; a repeated run has its own."""
LIMITS = ("total_env_steps", "max_seconds", "target_return")
RESUMABLE = {
    *LIMITS,
    "checkpoint_options",
    "dashboard",
    "device",
    "evaluate_every",
    "evaluation_episodes",
    "json",
    "quiet",
    "trackers",
}
"""Options that may have another value when a run is resumed."""
_NOT_FILES = ("envpool", "veldt", "__main__")  # "veldt:" names a game, not a file


@dataclass(frozen=True)
class ConfigFile:
    """The content of a file with options."""

    path: Path
    options: dict[str, Any]
    architecture: str | None
    is_run: bool
    """It is config.json of a run, which has a value for every option."""

    def checked(self, architecture: str) -> dict[str, Any]:
        """The options for this architecture; refuses unknown names and bad values."""
        own = option_fields(architectures.load(architecture).config)
        known = {**option_fields(RunOptions), **own}
        for name, value in self.options.items():
            if name not in known:
                if name in (moved := architectures.moved_options(architecture)):
                    raise ConfigurationError(f"{self.path}: {moved[name]}")
                of = "" if self.architecture in (None, architecture) else f", for {architecture}"
                see = f"see veldt train {architecture} --help"
                line = unknown_option(name, known, otherwise=see, value=value)
                raise ConfigurationError(f"{self.path}{of}: {line}")
        return {
            name: self._converted(known[name], value)
            for name, value in self.options.items()
            if not (self.is_run and name in _NOT_REPEATED)
        }

    def _converted(self, leaf: OptionField, value: Any) -> Any:
        """The value as Python would give it: files have lists and no None."""
        if isinstance(value, list):
            value = tuple(value)
        if is_keyed(leaf.kind) and isinstance(value, Mapping):
            return {
                key: self._converted(leaf.keys[key], entry) if key in leaf.keys else entry
                for key, entry in value.items()
            }
        if value == "none" and validation_error(None, leaf.kind) is None:
            return None
        problem = validation_error(value, leaf.kind)
        if problem is None:
            return value
        is_whole = isinstance(value, float) and value.is_integer()
        if is_whole and validation_error(int(value), leaf.kind) is None:
            return int(value)
        raise ConfigurationError(f"{self.path}: {leaf.name} {problem}")


def read_config(path: str | Path, trust_code: bool = False) -> ConfigFile:
    """Read a file with options; refuses a run's config.json whose code has changed."""
    path = Path(path)
    content = _parsed(path)
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: there must be options by name, such as env and seed")
    is_run = isinstance(content.get("options"), dict) and isinstance(content.get("config"), dict)
    if is_run:
        if not trust_code:
            check_code(path, content)
        options = {**content["options"], **content["config"]}
        return ConfigFile(path, options, str(content.get("architecture")), True)
    options = {str(name).replace("-", "_"): value for name, value in content.items()}
    architecture = options.pop("architecture", None)
    if architecture is not None and not isinstance(architecture, str):
        raise ConfigurationError(f"{path}: architecture is {architecture!r}; use a name")
    return ConfigFile(path, options, architecture, False)


def with_config(
    architecture: str | None, given: Mapping[str, Any], file: ConfigFile | None
) -> tuple[str, dict[str, Any]]:
    """The architecture and all options: those of the file, replaced by those that were `given`."""
    name = architecture or (None if file is None else file.architecture)
    if name is None:
        where = "" if file is None else f", or say architecture = in {file.path}"
        raise ConfigurationError(
            f"name an architecture: {', '.join(architectures.ARCHITECTURES)}{where}"
        )
    if file is None:
        return name, dict(given)
    if file.is_run and "preset" in given:
        raise ConfigurationError(
            f"{file.path} names every option, so that --preset would change nothing; leave one out"
        )
    options = file.checked(name)
    for key, value in given.items():
        if isinstance(value, Mapping) and key != "env_options":
            value = {**options.get(key, {}), **value}
        options[key] = value
    return name, options


def _parsed(path: Path) -> Any:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigurationError(
            f"config {path} is none of {', '.join(_READERS)}; a run's config.json can be given, too"
        )
    try:
        return read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"config {path} cannot be read ({error.strerror}); give the path of a file"
        ) from error
    except ValueError as error:
        place = " ".join(str(error).split())
        text = f"config {path} is not valid {path.suffix[1:]}: {place}"
        raise ConfigurationError(text) from error


_READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def saved_options(
    run_dir: Path, trust_code: bool = False
) -> tuple[str, RunOptions, dict[str, Any]]:
    """Architecture, common options and the architecture's own fields from a run's config.json."""
    path = run_dir / CONFIG_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not trust_code:
            check_code(path, stored)
        check_kinds(RunOptions, stored["options"])
        if unknown := set(stored["options"]) - {entry.name for entry in fields(RunOptions)}:
            raise ConfigurationError(
                f"another version of Veldt wrote {', '.join(sorted(unknown))}; use that version"
            )
        options = RunOptions(**stored["options"])
        options = replace(options, trackers=tuple(options.trackers))
        config = architectures.load(stored["architecture"]).config
        own = {k: tuple(v) if isinstance(v, list) else v for k, v in stored["config"].items()}
        check_kinds(config, own)
        return stored["architecture"], options, own
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{run_dir} is not a run directory ({type(error).__name__}: {error}); give the folder"
            f" that holds {CONFIG_FILE}"
        ) from error


def code_hashes(architecture: str, env: Any, network: Any) -> dict[str, str]:
    """Hash of the files that each name of an option would import; nothing is imported."""
    return {name: _hash(files) for name, files in _code(architecture, env, network)}


def _hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check_code(config: Path, stored: dict[str, Any]) -> None:
    """Refuse to import code that is not what the run was trained with."""
    options, recorded = stored["options"], stored.get("code")
    recorded = recorded if isinstance(recorded, dict) else {}
    run_dir = config.parent.resolve()
    for name, files in _code(stored["architecture"], options.get("env"), options.get("network")):
        inside = [file for file in files if file.resolve().is_relative_to(run_dir)]
        if inside:
            problem = f"{inside[0]} lies in the run directory itself"
        elif name.partition(":")[0].split(".")[0] in sys.stdlib_module_names:
            problem = "that is part of Python and neither an environment nor a network"
        elif not files or recorded.get(name) == _hash(files):
            continue  # importing what has no files will say that it cannot be found
        elif name not in recorded:
            problem = f"there is no record of {files[-1]} as it was when the run was trained"
        else:
            problem = f"{files[-1]} is not what it was when the run was trained"
        raise ConfigurationError(
            f"{config} asks to run '{name}', but {problem}; read it, and add {TRUST_FLAG} if it"
            " may run"
        )


def _code(architecture: Any, env: Any, network: Any) -> Iterator[tuple[str, list[Path]]]:
    """Names that stand for code, and the files that run when they are imported."""
    name = str(architecture)
    if name.endswith(".py"):
        yield name, [Path(name)] if Path(name).is_file() else []
    elif architectures.is_own(name):
        yield name, _files_of(name)
    for name in (str(env), str(network)):
        module, colon, _ = name.partition(":")
        if colon and module not in _NOT_FILES:
            yield name, _files_of(module)


def _files_of(module: str) -> list[Path]:
    """The files of a module and of the packages that it is in."""
    files: list[Path] = []
    path, full = [str(Path.cwd()), *sys.path], ""
    for part in module.split("."):
        full = f"{full}.{part}" if full else part
        spec = PathFinder.find_spec(full, path)
        if spec is None:
            return files
        if spec.origin is not None and Path(spec.origin).is_file():
            files.append(Path(spec.origin))
        path = list(spec.submodule_search_locations or [])
    return files
