# SPDX-License-Identifier: Apache-2.0
"""Every option of every architecture refuses what it cannot be, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from veldt import architectures
from veldt.cli.main import main
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import Bounds
from veldt.options.fields import Leaf, changed, flat, leaves, with_values

_BASE = {name: architectures.load(name).Config() for name in architectures.ARCHITECTURES}
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


def cases() -> Iterator[Any]:
    for owner, config in _BASE.items():
        for leaf in leaves(type(config)).values():
            for bad in bad_values(leaf.kind):
                yield pytest.param(owner, leaf, bad, id=f"{owner}-{leaf.name}-{bad}")


CASES = list(cases())


def test_there_are_cases_for_every_number_and_choice():
    covered = {(case.values[0], case.values[1].name) for case in CASES}
    plain = {str, dict, bool}
    for owner, config in _BASE.items():
        for leaf in leaves(type(config)).values():
            kinds = {get_origin(leaf.kind) or leaf.kind, *get_args(leaf.kind)}
            assert (owner, leaf.name) in covered or kinds & plain, (owner, leaf.name)


@pytest.mark.parametrize(("owner", "leaf", "bad"), CASES)
def test_python_refuses_it_with_one_line_that_names_it(owner: str, leaf: Leaf, bad: Any):
    with pytest.raises(ConfigurationError) as caught:
        with_values(_BASE[owner], {leaf.name: bad})
    assert leaf.name in str(caught.value)
    assert "\n" not in str(caught.value)


def one_bad_value_of_each() -> Iterator[Any]:
    seen = set()
    for case in CASES:
        owner, leaf, bad = case.values
        if (owner, leaf.name) not in seen and not isinstance(bad, bool):
            seen.add((owner, leaf.name))
            yield case


@pytest.mark.parametrize(("owner", "leaf", "bad"), list(one_bad_value_of_each()))
def test_the_command_line_refuses_it_and_writes_nothing(
    owner: str, leaf: Leaf, bad: Any, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    text = ",".join(map(str, bad)) if isinstance(bad, tuple) else str(bad)
    name = "impala" if owner == "run" else owner
    words = ["train", name, "--env", "CartPole-v1", "--backend", "serial"]
    code = main([*words, f"--{leaf.name.replace('_', '-')}={text}"])
    printed = capsys.readouterr()
    assert code == 2
    assert len(printed.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_options_go_flat_and_come_back(name):
    for preset in architectures.load(name).PRESETS.values():
        values = flat(preset)
        assert with_values(type(preset)(), values) == preset


def test_an_unknown_name_is_met_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean learning_rate"):
        changed(_BASE["impala"], learning_rat=1.0)
