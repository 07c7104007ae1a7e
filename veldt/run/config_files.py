# SPDX-License-Identifier: Apache-2.0
"""Options in a file: TOML, YAML or JSON, by the names they have in Python, or config.json of a run.

What the file says stands below what is given beside it, on the command line or in Python.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veldt import architectures
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import is_keyed, validation_error
from veldt.options.fields import OptionField, option_fields
from veldt.options.old_spellings import unknown_option
from veldt.run.trust import check_code

ARCHITECTURE = "architecture"
NOT_REPEATED = {
    "dashboard",
    "json",
    "quiet",
    "run_dir",
}
"""Options that say where a run goes and how it shows itself, or what led to others: a run is
repeated without them."""


@dataclass(frozen=True)
class ConfigFile:
    """What a file says, by the names of the options."""

    path: Path
    options: dict[str, Any]
    architecture: str | None
    is_run: bool
    """It is config.json of a run, which names every option."""

    def checked(self, architecture: str) -> dict[str, Any]:
        """The options, for this architecture; refuses keys and values that are none of its."""
        own = option_fields(architectures.load(architecture).config)
        known = {**option_fields(RunOptions), **own}
        for name in self.options:
            if name not in known:
                if name in (moved := architectures.moved_options(architecture)):
                    raise ConfigurationError(f"{self.path}: {moved[name]}")
                of = "" if self.architecture in (None, architecture) else f", for {architecture}"
                line = unknown_option(name, known, f"see veldt train {architecture} --help")
                raise ConfigurationError(f"{self.path}{of}: {line}")
        return {
            name: self._fitting(known[name], value)
            for name, value in self.options.items()
            if not (self.is_run and name in NOT_REPEATED)
        }

    def _fitting(self, leaf: OptionField, value: Any) -> Any:
        """The value as Python would give it: files have lists, and no None."""
        if isinstance(value, list):
            value = tuple(value)
        if is_keyed(leaf.kind) and isinstance(value, Mapping):
            known = option_fields(leaf.kind)
            return {
                key: self._fitting(known[key], entry) if key in known else entry
                for key, entry in value.items()
            }
        if value == "none" and validation_error(None, leaf.kind) is None:
            value = None
        trouble = validation_error(value, leaf.kind)
        if trouble is None:
            return value
        # 1e6 is how people write a million.
        is_whole = isinstance(value, float) and value.is_integer()
        if is_whole and validation_error(int(value), leaf.kind) is None:
            return int(value)
        raise ConfigurationError(f"{self.path}: {leaf.name} {trouble}")


def read_config(path: str | Path, trust_code: bool = False) -> ConfigFile:
    """Refuses what cannot be read. A run's config.json may name files of code: they run only while
    they are what the run was trained with, unless `trust_code`."""
    path = Path(path)
    content = _parsed(path)
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: there must be options by name, such as env and seed")
    is_run = isinstance(content.get("options"), dict) and isinstance(content.get("config"), dict)
    if is_run:
        if not trust_code:
            check_code(path, content)
        options = {**content["options"], **content["config"]}
        return ConfigFile(path, options, str(content.get(ARCHITECTURE)), True)
    options = {str(name).replace("-", "_"): value for name, value in content.items()}
    architecture = options.pop(ARCHITECTURE, None)
    if architecture is not None and not isinstance(architecture, str):
        raise ConfigurationError(f"{path}: architecture is {architecture!r}; use a name")
    return ConfigFile(path, options, architecture, False)


def with_config(
    architecture: str | None, given: Mapping[str, Any], file: ConfigFile | None
) -> tuple[str, dict[str, Any]]:
    """The architecture and all options: those of the file, then those that were `given`."""
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
    readers: dict[str, Callable[[str], Any]]
    readers = {".toml": tomllib.loads, ".json": json.loads, ".yaml": _yaml, ".yml": _yaml}
    read = readers.get(path.suffix.lower())
    if read is None:
        raise ConfigurationError(
            f"config {path} is none of {', '.join(readers)}; a run's config.json can be given, too"
        )
    try:
        return read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"config {path} cannot be read ({error.strerror}); give the path of a file"
        ) from error
    except ConfigurationError:
        raise
    except ValueError as error:
        place = " ".join(str(error).split())
        raise ConfigurationError(
            f"config {path} is not valid {path.suffix[1:]}: {place}"
        ) from error


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigurationError(
            'YAML is read with pyyaml; run: pip install "veldt[yaml]", or write TOML'
        ) from error

    class Loader(yaml.SafeLoader):
        """YAML 1.1 takes 1e-3 for a word."""

    number = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    loader = Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(error) from error
    finally:
        loader.dispose()
