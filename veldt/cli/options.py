# SPDX-License-Identifier: Apache-2.0
"""Command-line options made from dataclass fields: name, type, default and the line under a field.

One definition serves Python, the command line, its help and shell completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING
from typing import Any, Literal, NoReturn, get_args, get_origin

from veldt.errors import ConfigurationError
from veldt.options import old_spellings
from veldt.options.checked import is_keyed
from veldt.options.fields import OptionField, flat, option_fields
from veldt.options.text import flag_of, format_value, reader


class Parser(argparse.ArgumentParser):
    """Raises ConfigurationError instead of printing a usage text, and knows near matches."""

    def __init__(self, prog: str, description: str = "", add_help: bool = True) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            add_help=add_help,
            formatter_class=lambda prog: argparse.HelpFormatter(
                prog, max_help_position=32, width=96
            ),
        )
        self.moved: Mapping[str, str] = {}
        """Options of earlier versions, and what to use instead."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise ConfigurationError(f"{message}; see {self.prog.split(' {')[0]} --help")

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """Every option that was given; an unknown one is met with the nearest."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0].removeprefix("--").replace("-", "_")
            if name in self.moved:
                raise ConfigurationError(self.moved[name])
            known = [text for action in self._actions for text in action.option_strings]
            raise ConfigurationError(unknown_option(unknown[0], known, self.prog))
        return vars(given)


def unknown_option(given: str, known: Iterable[str], program: str) -> str:
    name = given.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected '{given}'; see {program} --help"
    return old_spellings.unknown_option(name.replace("_", "-"), known, f"see {program} --help")


def add_fields(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    config: type,
    presets: Mapping[str, object] | None = None,
    required: bool = True,
    only: Collection[str] | None = None,
    shown: Collection[str] | None = None,
) -> None:
    """One flag per field, also of nested groups; what is not given does not appear in the result.

    `presets` are instances by name, whose values the help shows as defaults. `required` is False
    when fields without a default may be left out; `only` names the fields to offer, and `shown`
    those of them that the help mentions."""
    values = {name: flat(preset) for name, preset in (presets or {}).items()}
    for name, leaf in option_fields(config).items():
        if only is not None and name not in only:
            continue
        default = _default_text(leaf, {preset: own[name] for preset, own in values.items()})
        text = f"{leaf.text} [{default}]" if default else leaf.text
        if is_keyed(leaf.kind):
            text = f"{leaf.text} Keys: {_keys_text(leaf, is_full=shown is None)}."
        settings: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": text.replace("%", "%%"),
            "required": required and leaf.entry.default is leaf.entry.default_factory is MISSING,
        }
        if shown is not None and name not in shown:
            settings["help"] = argparse.SUPPRESS
        if leaf.kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["type"], settings["metavar"] = reader(leaf.kind)
            if get_origin(leaf.kind) is Literal:
                settings["choices"] = get_args(leaf.kind)
            if bool in get_args(leaf.kind):  # a switch that can also have a value
                settings |= {"nargs": "?", "const": True}
        parser.add_argument(flag_of(leaf), **settings)


def _keys_text(leaf: OptionField, is_full: bool) -> str:
    """The keys of an option, with their help and defaults where all options are shown."""
    keys = option_fields(leaf.kind)
    if not is_full:
        return ", ".join(keys)
    texts = []
    for name, key in keys.items():
        default = _default_text(key, {}).replace(",", "x")
        texts.append(f"{name}: {key.text}" + (f" [{default}]" if default else ""))
    return "; ".join(texts)


def _default_text(leaf: OptionField, presets: Mapping[str, Any]) -> str:
    values = {name: _shown(value) for name, value in presets.items()}
    if len(set(values.values())) > 1:
        return ", ".join(f"{name}: {value}" for name, value in values.items())
    if values:
        return next(iter(values.values()))
    if leaf.entry.default in (MISSING, None):
        return ""  # the text under the field says what happens then
    return _shown(leaf.entry.default)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return format_value(value)
