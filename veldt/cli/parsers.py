# SPDX-License-Identifier: Apache-2.0
"""The parser of every command; the source of help and error messages.

Options of runs are made from dataclass fields: name, type, default and the text under a field.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import MISSING
from typing import Any, Literal, NoReturn, get_args, get_origin

from veldt import architectures
from veldt.architectures import ARCHITECTURES
from veldt.errors import ConfigurationError
from veldt.options import RunOptions, fields
from veldt.options.checked import is_keyed
from veldt.options.fields import OptionField, flat, format_value, option_fields, reader
from veldt.options.fields import whole_number as whole
from veldt.run.config_files import RESUMABLE, TRUST_FLAG

HELP = ("-h", "--help")
USUAL = {
    *("env", "backend", "seed", "run_dir", "total_env_steps", "max_seconds", "target_return"),
    *("num_actors", "envs_per_actor", "device", "preset", "network", "recurrent", "dashboard"),
    *("network_options", "wrappers", "quiet"),
}
"""Common options that `--help` shows; `--help all` shows every one."""
USUAL_OWN = {
    *("learning_rate", "gamma", "entropy_coefficient", "trajectory_steps"),
    *("batch_size", "batch_trajectories", "num_learners", "matchmaking"),
}
"""Options of an architecture that `--help` shows."""
_TRUST = "run Python files that config.json names, also if they have changed since"
_USAGE = {
    "describe": "[--env ID] [--format text|mermaid] [options]",
    "sweep": "--env ID --search NAME=VALUES ... [options]",
    "train": "--env ID [options]",
}


class Parser(argparse.ArgumentParser):
    """Raises ConfigurationError instead of printing a usage text, and suggests near matches."""

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
        self.fields: Mapping[str, OptionField] = {}
        """Options with keys, by whose names they were options of their own."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise ConfigurationError(f"{message}; see {self.prog.split(' {')[0]} --help")

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """The options that were given; raises ConfigurationError for unknown ones."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0].removeprefix("--").replace("-", "_")
            if name in self.moved:
                raise ConfigurationError(self.moved[name])
            raise ConfigurationError(self._refusal(unknown))
        return vars(given)

    def _refusal(self, unknown: list[str]) -> str:
        """A message about arguments that are not known: an option, and perhaps its value."""
        name, equals, value = unknown[0].partition("=")
        see = f"see {self.prog} --help"
        if not name.startswith("-"):
            return f"unexpected '{unknown[0]}'; {see}"
        if not equals:
            value = unknown[1] if unknown[1:] and not unknown[1].startswith("--") else "VALUE"
        known = [text for action in self._actions for text in action.option_strings]
        return fields.unknown_option(name.replace("_", "-"), self.fields, known, see, value)


class _JoinKeys(argparse.Action):
    """KEY=VALUE,...: an option that is given twice has the keys of both."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), **values})


def add_fields(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    config: type,
    presets: Mapping[str, object] | None = None,
    required: bool = True,
    only: Collection[str] | None = None,
    shown: Collection[str] | None = None,
) -> None:
    """Add one flag per field, also of nested groups. Options that are not given are not parsed.

    The help shows the values of `presets` as defaults, and only the fields in `shown`, or all."""
    values = {name: flat(preset) for name, preset in (presets or {}).items()}
    for name, option in option_fields(config).items():
        if only is not None and name not in only:
            continue
        of_presets = {preset: own[name] for preset, own in values.items()}
        if is_keyed(option.kind):
            text = f"{option.text} Keys: {_keys_text(option, of_presets, is_full=shown is None)}."
        else:
            default = _default_text(option, of_presets)
            text = f"{option.text} [{default}]" if default else option.text
        has_default = (option.entry.default, option.entry.default_factory) != (MISSING, MISSING)
        settings: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": text.replace("%", "%%"),
            "required": required and not has_default,
        }
        if shown is not None and name not in shown:
            settings["help"] = argparse.SUPPRESS
        if option.kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["type"], settings["metavar"] = reader(option.kind)
            if settings["metavar"] == "KEY=VALUE,...":
                settings["action"] = _JoinKeys
            if get_origin(option.kind) is Literal:
                settings["choices"] = get_args(option.kind)
            if option.entry.metadata.get("several"):
                settings |= {"action": "append", "type": str, "metavar": "TEXT"}
            if bool in get_args(option.kind):  # a switch that can also have a value
                settings |= {"nargs": "?", "const": True}
        parser.add_argument(option.flag, **settings)


def _keys_text(option: OptionField, presets: Mapping[str, Any], is_full: bool) -> str:
    """The keys of an option, with their help and defaults where all options are shown."""
    if not is_full:
        return ", ".join(option.keys)
    texts = []
    for name, key in option.keys.items():
        values = {preset: getattr(value, name) for preset, value in presets.items()}
        default = _default_text(key, values, "x")
        texts.append(f"{name}: {key.text.removesuffix('.')}" + (f" [{default}]" if default else ""))
    return "; ".join(texts)


def _default_text(option: OptionField, presets: Mapping[str, Any], separator: str = ",") -> str:
    def shown(value: Any) -> str:
        text = ("off", "on")[value] if isinstance(value, bool) else format_value(value)
        return text.replace(",", separator)

    values = {name: shown(value) for name, value in presets.items()}
    if len(set(values.values())) > 1:
        return ", ".join(f"{name}: {value}" for name, value in values.items())
    if values:
        return next(iter(values.values()))
    # Without a default, the text under the field says what happens then.
    return "" if option.entry.default in (MISSING, None) else shown(option.entry.default)


def common_parser(command: str, name: str = "ARCH", show_all: bool = False) -> Parser:
    """The options of train, sweep or describe that every architecture has."""
    is_one = name != "ARCH"
    description = architectures.summary(name) if is_one else f"ARCH: {', '.join(ARCHITECTURES)}"
    parser = Parser(f"veldt {command} {name}", description, add_help=False)
    parser.usage = f"veldt {command} {name} {_USAGE[command]}"
    text = "an architecture, or the path of one's file"
    parser.add_argument("architecture", nargs="?", metavar="ARCH", help=text)
    text = "show the options people use; followed by all, every option"
    parser.add_argument(*HELP, action="help", help=text)
    if command == "describe":
        parser.add_argument(
            "--format", choices=("text", "mermaid"), default="text", help="of the diagram [text]"
        )
    if command == "sweep":
        from veldt.sweeps.search import SweepOptions

        group = parser.add_argument_group("the search")
        text = "an option and its values: LOW..HIGH, LOW..HIGH:log or A,B,C; several times"
        settings = {"default": argparse.SUPPRESS, "metavar": "NAME=VALUES", "help": text}
        group.add_argument("--search", action="append", **settings)  # type: ignore[arg-type]
        add_fields(group, SweepOptions)
    if command != "describe":
        group = parser.add_argument_group("options in a file")
        text = "options in TOML or JSON, or config.json of a run; those given here win"
        group.add_argument("--config", default=argparse.SUPPRESS, metavar="FILE", help=text)
        text = f"{_TRUST}; also that of --from" if show_all else argparse.SUPPRESS
        group.add_argument(TRUST_FLAG, action="store_true", default=argparse.SUPPRESS, help=text)
    if command == "train":
        text = "print what would be trained, and start nothing"
        settings = {"action": "store_true", "default": argparse.SUPPRESS, "help": text}
        parser.add_argument("--dry-run", **settings)  # type: ignore[arg-type]
    group = parser.add_argument_group("common options")
    add_fields(group, RunOptions, required=False, shown=None if show_all else USUAL)
    if not show_all:
        text = "These are the options people use. {} --help all shows every option, by group."
        parser.epilog = text.format(parser.prog)
    return parser


def run_parser(command: str, name: str, show_all: bool = False) -> Parser:
    """All options of train, sweep or describe for one architecture: common ones, then its own."""
    parser = common_parser(command, name, show_all)
    parser.moved = architectures.moved_options(name)
    own = option_fields(architectures.load(name).config)
    parser.fields = {**option_fields(RunOptions), **own}
    _add_own_options(parser, name, show_all)
    return parser


def _add_own_options(parser: argparse.ArgumentParser, name: str, show_all: bool) -> None:
    """The options of an architecture; with `show_all`, by the group of its Config."""
    system = architectures.load(name)
    title = f"options of {architectures.label(name)}"
    known = option_fields(system.config)
    groups: dict[str, list[str]] = {}
    for own, option in known.items():
        group = f", {option.path[-1].replace('_', ' ')}" if show_all and option.path else ""
        groups.setdefault(title + group, []).append(own)
    shown: set[str] | None = None
    if not show_all:  # of a user's own architecture without usual ones, those outside of groups
        outside = {own for own, option in known.items() if not option.path}
        shown = USUAL_OWN & set(known) or outside
    for heading, names in sorted(groups.items(), key=lambda entry: entry[0] != title):
        group_parser = parser.add_argument_group(heading)
        add_fields(group_parser, system.config, system.presets, only=names, shown=shown)


def resume_parser() -> Parser:
    """Common options that may not change are parsed too, so that they are refused by name."""
    parser = Parser("veldt resume", "Resume a run from its newest checkpoint; budgets may change")
    parser.fields = option_fields(RunOptions)
    parser.add_argument("run", **{**_RUN, "help": "directory of a run"})
    parser.add_argument(TRUST_FLAG, **_TRUST_CODE)
    group = parser.add_argument_group("what may change")
    add_fields(group, RunOptions, required=False, shown=RESUMABLE)
    return parser


_RUN: dict[str, Any] = {"metavar": "RUN_DIR", "help": "directory of a run, or zoo:NAME"}
_STOCHASTIC = {
    "action": "store_true",
    "help": "draw actions from the policy; Q networks act at random in 5%% of steps",
}
_TRUST_CODE: dict[str, Any] = {"action": "store_true", "help": _TRUST}
_JSON = {"action": "store_true", "help": "print JSON"}
_READS_RUN: dict[str, dict[str, Any]] = {
    "run_dir": _RUN,
    "--checkpoint": {
        "metavar": "best|last|N",
        "default": "best",
        "help": "best weights, newest checkpoint, or the one at N env steps [best]",
    },
    "--policy": {"type": whole, "help": "one of several, of the newest checkpoint [the best]"},
    "--seed": {"type": whole, "default": 0, "help": "seed of what is random [0]"},
    TRUST_FLAG: _TRUST_CODE,
}
"""What every command takes that reads the policy of a run."""
_ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "list": {"--json": _JSON},
    "envs": {
        "text": {"nargs": "?", "default": "", "help": "only ids that contain this text"},
        "--json": _JSON,
    },
    "runs": {
        "folder": {"nargs": "?", "default": "runs", "help": "where to search [runs]"},
        "--json": _JSON,
    },
    "info": {"run_dir": _RUN, "--json": _JSON},
    "zoo": {"--json": _JSON},
    "evaluate": {
        **_READS_RUN,
        "--stochastic": _STOCHASTIC,
        "--json": _JSON,
        "--episodes": {"type": whole, "default": 20, "help": "episodes to play [20]"},
        "--env": {"metavar": "ID", "help": "play another environment of the same spaces"},
        "--video": {"action": "store_true", "help": "record one more episode in RUN_DIR"},
    },
    "play": {
        **_READS_RUN,
        "--env": {"help": "the game; must be the one the run has learned"},
        "--seat": {"type": whole, "default": 0, "help": "yours; 0 moves first [0]"},
    },
    "export": {
        **_READS_RUN,
        "--out": {"required": True, "metavar": "FILE", "help": "where to write it"},
        "--format": {
            "choices": ("onnx", "torch"),
            "default": "onnx",
            "help": "ONNX, or a program of torch.export [onnx]",
        },
    },
    "serve": {
        **_READS_RUN,
        "--stochastic": _STOCHASTIC,
        "--json": _JSON,
        "--host": {
            "default": "127.0.0.1",
            "help": "other than this machine's: with token and TLS only [127.0.0.1]",
        },
        "--port": {"type": whole, "default": 0, "help": "0: any free one, which is printed [0]"},
    },
    "watch": {
        "run_dir": _RUN,
        "--port": {"type": whole, "default": 0, "help": "0: any free one, which is printed [0]"},
        # For runs that start the page themselves.
        "--beside-run": {"type": whole, "help": argparse.SUPPRESS},
    },
    "compare": {},
    "plot": {
        "run_dirs": {"metavar": "RUN_DIR", "nargs": "+", "help": "directories of runs"},
        "--out": {"default": "curves.png", "help": "a .png, .svg or .html file [%(default)s]"},
    },
    "plan": {"architecture": {"metavar": "ARCH", "help": ", ".join(ARCHITECTURES)}},
}
WITHOUT_ARCHITECTURE = (*_ARGUMENTS, "resume")
"""The commands whose options do not depend on an architecture."""


def command_parser(command: str, summary: str = "") -> Parser:
    """The parser of a command of WITHOUT_ARCHITECTURE."""
    if command == "resume":
        return resume_parser()
    parser = Parser(f"veldt {command}", summary)
    for name, settings in _ARGUMENTS[command].items():
        parser.add_argument(name, **settings)
    if command == "compare":
        from veldt.compare.runs import Comparison

        add_fields(parser, Comparison)
    if command == "plan":
        from veldt.planner.command import PlanOptions

        add_fields(parser, PlanOptions)
    return parser
