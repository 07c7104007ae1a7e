# SPDX-License-Identifier: Apache-2.0
"""Parses searches such as learning_rate=1e-5..1e-1:log and checks them against the options."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from veldt import architectures
from veldt.errors import ConfigurationError, did_you_mean
from veldt.options import RunOptions
from veldt.options.checked import is_keyed, validation_error
from veldt.options.fields import OptionField, option_fields
from veldt.options.text import format_value, reader

if TYPE_CHECKING:
    from optuna.trial import Trial

_FORMS = "use NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"
_NOT_SEARCHED = {
    "checkpoint_options", "dashboard", "env", "evaluation_episodes", "json", "max_seconds",
    "quiet", "run_dir", "target_return", "timeline", "total_env_steps", "trackers",
}  # fmt: skip
"""They change the task, the budget or the output, so scores could not be compared."""

_COMMON = {n: leaf for n, leaf in option_fields(RunOptions).items() if n not in _NOT_SEARCHED}
_KEYS = {
    key: (option, inner)
    for option, leaf in _COMMON.items()
    if is_keyed(leaf.kind)
    for key, inner in option_fields(leaf.kind).items()
}
"""Keys such as hidden_sizes, each searched by its own name."""


def with_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with keys that are searched in the option they belong to."""
    found = {name: value for name, value in options.items() if name not in _KEYS}
    for name, value in options.items():
        if name in _KEYS:
            option = _KEYS[name][0]
            found[option] = {**found.get(option, {}), name: value}
    return found


@dataclass(frozen=True)
class Dimension:
    """One option and its values: a range, or choices in the notation of the command line."""

    leaf: OptionField
    text: str
    """As given by the user."""
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        return self.leaf.name

    def suggest(self, trial: Trial) -> Any:
        """The option's value in this trial."""
        if self.choices:
            return self.value(trial.suggest_categorical(self.name, self.choices))
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def value(self, parameter: Any) -> Any:
        """The option's value for a parameter of an Optuna trial."""
        return _read(self.leaf, parameter) if self.choices else parameter

    def proposal(self, value: Any) -> Any:
        """The trial's parameter for this value; None if it is outside of the search."""
        if self.choices:
            return format_value(value) if format_value(value) in self.choices else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and self.low <= value <= self.high else None


def search_space(words: Iterable[str], architecture: str) -> list[Dimension]:
    """The dimensions of a search; raises ConfigurationError for unknown options and bad values."""
    own = option_fields(architectures.load(architecture).config)
    known = {**_COMMON, **{key: inner for key, (_, inner) in _KEYS.items()}, **own}
    found: dict[str, Dimension] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not values.strip():
            raise ConfigurationError(f"search '{word}' has no values; {_FORMS}")
        if name in _NOT_SEARCHED:
            raise ConfigurationError(
                f"search {name}: it must be the same for all trials; give it as an option"
            )
        if name not in known:
            hint = did_you_mean(name, known, f"see veldt train {architecture} --help")
            raise ConfigurationError(f"search '{name}' is no option of {architecture}; {hint}")
        if name in found:
            raise ConfigurationError(f"search {name} is given twice; give all its values at once")
        found[name] = _dimension(known[name], values.strip())
    if not found:
        raise ConfigurationError(f"nothing is searched; {_FORMS} with --search")
    return list(found.values())


def _dimension(leaf: OptionField, text: str) -> Dimension:
    if ".." not in text:
        return _choices(leaf, text)
    span, _, scale = text.partition(":")
    if scale not in ("", "log"):
        raise ConfigurationError(f"search {leaf.name}: '{scale}' is no scale; {_FORMS}")
    low, high = (_read(leaf, end) for end in span.split("..", 1))
    if not all(isinstance(e, int | float) and not isinstance(e, bool) for e in (low, high)):
        raise ConfigurationError(f"search {leaf.name} has no range; list its values: NAME=A,B")
    for end in (low, high):
        _check(leaf, end)
    if not low < high:
        raise ConfigurationError(f"search {leaf.name}: {low} is not below {high}; {_FORMS}")
    if scale == "log" and low <= 0:
        raise ConfigurationError(f"search {leaf.name}: a log scale begins above 0, not at {low}")
    whole = isinstance(low, int) and isinstance(high, int)
    return Dimension(leaf, text, low=low, high=high, log=scale == "log", whole=whole)


def _choices(leaf: OptionField, text: str) -> Dimension:
    """Choices are separated by commas; for options that are lists, by slashes."""
    of_lists = get_origin(leaf.kind) is tuple
    parts = [part.strip() for part in text.split("/" if of_lists else ",")]
    values = [_read(leaf, part) for part in parts]
    for value in values:
        _check(leaf, value)
    if len(set(map(format_value, values))) < 2:
        form = "NAME=64,64/256,256" if of_lists else "NAME=A,B"
        raise ConfigurationError(f"search {leaf.name} has one value; name several: {form}")
    return Dimension(leaf, text, choices=tuple(dict.fromkeys(map(format_value, values))))


def _read(leaf: OptionField, text: str) -> Any:
    try:
        if leaf.kind is bool:
            return {"true": True, "on": True, "false": False, "off": False}[text.lower()]
        return reader(leaf.kind)[0](text)
    except KeyError:
        raise ConfigurationError(f"search {leaf.name}: '{text}' is not true or false") from None
    except (ArgumentTypeError, ValueError) as error:
        raise ConfigurationError(f"search {leaf.name}: {error}; {_FORMS}") from error


def _check(leaf: OptionField, value: Any) -> None:
    trouble = validation_error(value, leaf.kind)
    if get_origin(leaf.kind) is Literal and trouble:
        trouble = f"'{value}' is none of {', '.join(get_args(leaf.kind))}"
    if trouble:
        raise ConfigurationError(f"search {leaf.name} {trouble}")
