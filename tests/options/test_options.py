# SPDX-License-Identifier: Apache-2.0
"""Options refuse bad values in one line before anything starts, once for each kind of option."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from veldt import architectures
from veldt.cli.main import main
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import Bounds, is_keyed
from veldt.options.fields import OptionField, changed, flat, option_fields, with_values

_BASE = {name: architectures.load(name).config() for name in architectures.ARCHITECTURES}
_BASE["run"] = RunOptions(env="CartPole-v1")


def bad_values(kind: Any) -> Iterator[Any]:
    """Values that a field of this type must refuse."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield "nonsense"
    elif origin is Annotated:
        [bounds] = [entry for entry in arguments[1:] if isinstance(entry, Bounds)]
        yield from _outside(bounds)
        yield from bad_values(arguments[0])
    elif origin is tuple:
        yield from ((bad,) for bad in bad_values(arguments[0]))
    elif is_keyed(kind):
        yield {"nonsense": 1}
        for key in option_fields(kind).values():
            yield from ({key.name: bad} for bad in bad_values(key.kind))
    elif origin is not None and type(None) in arguments:  # a union
        yield from bad_values(arguments[0])
    elif kind is float:
        yield from (math.nan, math.inf, "many")
    elif kind in (int, bool):
        yield "many"


def _outside(bounds: Bounds) -> Iterator[float]:
    if bounds.low > -math.inf:
        yield bounds.low if bounds.above else bounds.low - 1
        yield -1e9
    if bounds.high < math.inf:
        yield bounds.high if bounds.below else bounds.high + 1 + abs(bounds.high)


def fields_of_each_kind() -> Iterator[tuple[str, OptionField]]:
    seen = set()
    for owner, config in _BASE.items():
        for entry in option_fields(type(config)).values():
            if str(entry.kind) not in seen:
                seen.add(str(entry.kind))
                yield owner, entry


CASES = [
    pytest.param(owner, entry, bad, id=f"{owner}-{entry.name}-{bad}")
    for owner, entry in fields_of_each_kind()
    for bad in bad_values(entry.kind)
]


@pytest.mark.parametrize(("owner", "entry", "bad"), CASES)
def test_python_refuses_it_with_one_line_that_names_it(owner: str, entry: OptionField, bad: Any):
    with pytest.raises(ConfigurationError) as caught:
        with_values(_BASE[owner], {entry.name: bad})
    assert entry.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_options_go_flat_and_come_back(name):
    for preset in architectures.load(name).presets.values():
        values = flat(preset)
        assert with_values(type(preset)(), values) == preset


def test_an_unknown_name_is_met_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean learning_rate"):
        changed(_BASE["impala"], learning_rat=1.0)
    with pytest.raises(ConfigurationError, match="has no key 'hiden_sizes'; did you mean hidden"):
        RunOptions("CartPole-v1", network_options={"hiden_sizes": (8,)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden_sizes", "network_options: --network-options hidden_sizes=64x64"),
        ("checkpoint_seconds", "checkpoint_options: --checkpoint-options seconds=60"),
        ("time_limit", "wrappers: --wrappers time_limit="),
        ("learner_devices", "use --device cuda:0,cuda:1"),
        ("from_part", "use --from RUN_DIR:best:encoder"),
        ("port", "use --dashboard PORT"),
    ],
)
def test_an_old_spelling_is_met_with_the_new_one(old, new, capsys):
    with pytest.raises(ConfigurationError, match=f"^{old} .*{new}"):
        changed(_BASE["run"], **{old: 1})
    flag = "--" + old.replace("_", "-")
    assert main(["train", "impala", "--env", "CartPole-v1", flag, "1"]) == 2
    assert new in capsys.readouterr().err


def test_keys_that_are_not_given_stay():
    options = changed(_BASE["run"], network_options={"hidden_sizes": [8, 8]})
    options = changed(options, network_options={"activation": "relu"})
    assert options.network_options.hidden_sizes == (8, 8)
    assert options.network_options.activation == "relu"


def test_there_are_at_most_25_common_options():
    assert len(option_fields(RunOptions)) <= 25
