# SPDX-License-Identifier: Apache-2.0
"""The options of `veldt sweep`, and searches such as learning_rate=1e-5..1e-1:log."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

from veldt import architectures
from veldt.errors import ConfigurationError, did_you_mean
from veldt.options import RunOptions
from veldt.options.checked import Bounds, Count, Options, validation_error
from veldt.options.fields import OptionField, format_value, option_fields, reader

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_FORMS = "use NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"
_NOT_SEARCHED = {
    *("checkpoint_options", "dashboard", "env", "evaluation_episodes", "json", "max_seconds"),
    *("quiet", "run_dir", "target_return", "timeline", "total_env_steps", "trackers"),
}
"""They change the task, the budget or the output, so scores could not be compared."""

_COMMON = {n: entry for n, entry in option_fields(RunOptions).items() if n not in _NOT_SEARCHED}


@dataclass(frozen=True)
class SweepOptions(Options):
    """The options of `veldt sweep` besides those of `veldt train`."""

    trials: Count = 12
    """Number of runs, including pruned ones."""
    parallel: Annotated[int, Bounds(1, 1024)] = 1
    """Runs at a time, each a process of its own."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose return is below the median of earlier ones; halving: successive
    halving, the better half continues after 20, 40 and 80% of the budget; none."""
    startup_trials: Count = 3
    """Trials that must end before the median prunes."""
    sampler_seed: Annotated[int, Bounds(0, 2**31)] = 0
    """Seed of the proposals; they also depend on the scores."""
    out: str | None = None
    """Folder of the sweep [sweeps/<architecture>-<env>]; the same command continues there."""


def take_sweep_options(options: dict[str, Any]) -> SweepOptions:
    """Remove the sweep's options from a mapping that also holds those of its runs."""
    names = {entry.name for entry in fields(SweepOptions)}
    return SweepOptions(**{name: options.pop(name) for name in names & set(options)})


def searched_options(architecture: str) -> dict[str, OptionField]:
    """Common options and an architecture's own."""
    return {**_COMMON, **option_fields(architectures.load(architecture).config)}


def with_keys(options: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Move searched keys such as hidden_sizes into the option they belong to."""
    found = dict(options)
    for option in searched_options(architecture).values():
        if keys := {name: found.pop(name) for name in option.keys if name in found}:
            found[option.name] = {**found.get(option.name, {}), **keys}
    return found


@dataclass(frozen=True)
class Dimension:
    """One option and its values: a range, or choices in the notation of the command line."""

    option: OptionField
    text: str
    """As given by the user."""
    distribution: BaseDistribution

    def value(self, parameter: Any) -> Any:
        """The option's value for a parameter of an Optuna trial."""
        return _read(self.option, parameter) if isinstance(parameter, str) else parameter

    def parameter(self, value: Any) -> Any:
        """The trial's parameter for this value; None if it is outside of the search."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if isinstance(self.distribution, CategoricalDistribution):
            return format_value(value) if format_value(value) in self.distribution.choices else None
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        is_inside = _is_number(value) and self.distribution.low <= value <= self.distribution.high
        return value if is_inside else None


def search_space(searches: Iterable[str], architecture: str) -> dict[str, Dimension]:
    """Dimensions by option; raises ConfigurationError for unknown options and bad values."""
    known = searched_options(architecture)
    for option in list(known.values()):
        known |= option.keys
    found: dict[str, Dimension] = {}
    for search in searches:
        name, _, values = (part.strip() for part in search.partition("="))
        name = name.lstrip("-").replace("-", "_")
        if not values:
            raise ConfigurationError(f"search '{search}' has no values; {_FORMS}")
        if name in _NOT_SEARCHED:
            raise ConfigurationError(
                f"search {name}: it must be the same for all trials; give it as an option"
            )
        if name not in known:
            hint = did_you_mean(name, known, f"see veldt train {architecture} --help")
            raise ConfigurationError(f"search '{name}' is no option of {architecture}; {hint}")
        if name in found:
            raise ConfigurationError(f"search {name} is given twice; give all its values at once")
        make = _range if ".." in values else _choices
        found[name] = Dimension(known[name], values, make(known[name], values))
    if not found:
        raise ConfigurationError(f"nothing is searched; give --search: {_FORMS}")
    return found


def _range(option: OptionField, text: str) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    span, _, scale = text.partition(":")
    if scale not in ("", "log"):
        raise ConfigurationError(f"search {option.name}: '{scale}' is no scale; {_FORMS}")
    low, high = (_read(option, end) for end in span.split("..", 1))
    if not (_is_number(low) and _is_number(high)):
        raise ConfigurationError(f"search {option.name} has no range; list its values: NAME=A,B")
    is_whole = isinstance(low, int) and isinstance(high, int)
    try:
        return (IntDistribution if is_whole else FloatDistribution)(low, high, log=scale == "log")
    except ValueError as error:
        raise ConfigurationError(f"search {option.name}: {error}") from error


def _choices(option: OptionField, text: str) -> BaseDistribution:
    """Choices are separated by commas; for options that are lists, by slashes."""
    from optuna.distributions import CategoricalDistribution

    of_lists = get_origin(option.kind) is tuple
    parts = text.split("/" if of_lists else ",")
    choices = dict.fromkeys(format_value(_read(option, part.strip())) for part in parts)
    if len(choices) < 2:
        form = "NAME=64,64/256,256" if of_lists else "NAME=A,B"
        raise ConfigurationError(f"search {option.name} has one value; name several: {form}")
    return CategoricalDistribution(tuple(choices))


def _read(option: OptionField, text: str) -> Any:
    """The value of an option; raises ConfigurationError where it cannot have it."""
    try:
        value = reader(option.kind)[0](text)
    except (ArgumentTypeError, ValueError) as error:
        raise ConfigurationError(f"search {option.name}: {error}; {_FORMS}") from error
    if trouble := validation_error(value, option.kind):
        raise ConfigurationError(f"search {option.name} {trouble}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
