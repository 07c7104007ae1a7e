# SPDX-License-Identifier: Apache-2.0
"""Options refuse bad values in one line before anything starts, once for each kind of option."""

import math
from dataclasses import replace
from itertools import chain
from typing import Literal, get_origin, get_type_hints

import pytest

from veldt import architectures
from veldt.architectures import load
from veldt.cli.main import main
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import changed, flat, option_fields, with_values
from veldt.options.keywords import ResumeOptions, SweepKeywords, TrainOptions
from veldt.run.config_files import RESUMABLE
from veldt.run.plan import make_plan
from veldt.sweeps.search import SweepOptions

_BASE = {name: load(name).config() for name in architectures.ARCHITECTURES}
_BASE["run"] = RunOptions(env="CartPole-v1")


@pytest.mark.parametrize(
    ("owner", "values", "says"),
    [
        ("run", {"num_actors": 0}, "num_actors is 0; use 1 to 4,096"),
        ("run", {"num_actors": 1.5}, "num_actors is 1.5, which this option cannot be"),
        ("run", {"seed": 2**63}, "use 0 or more and below 9"),
        ("run", {"evaluate_every": "often"}, "such as 50000, or seconds with an s, such as 60s"),
        ("run", {"evaluate_every": "1s", "evaluation_episodes": 0}, "evaluation_episodes of 1"),
        ("run", {"timeline": 0}, "timeline is 0; use above 0 and at most 60, or none"),
        ("run", {"target_return": math.nan}, "target_return is nan; use a finite number"),
        ("run", {"quiet": "yes"}, "quiet is 'yes', which this option cannot be"),
        ("run", {"backend": "thread"}, "backend is unknown: 'thread'; use serial, process, ray"),
        ("run", {"trackers": ("none", "mail")}, "trackers is unknown: 'mail'; use auto, tensorb"),
        ("run", {"device": "cuda:x"}, "device is unknown: 'cuda:x'; use auto, cpu"),
        ("run", {"env_options": [1]}, "env_options is"),
        ("run", {"wrappers": {"frame_stack": 0}}, "wrappers frame_stack is 0; use 1 to 256"),
        ("run", {"network_options": {"hidden_sizes": ()}}, "hidden_sizes needs at least one"),
        ("run", {"network_options": {"hiden_sizes": (8,)}}, "has no key 'hiden_sizes'; did you me"),
        ("impala", {"learning_rate": -1e-3}, "learning_rate is -0.001; use 0 to 100"),
        ("impala", {"learning_rat": 1.0}, "did you mean learning_rate"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_with_one_line_that_names_it(owner, values, says):
    with pytest.raises(ConfigurationError) as caught:
        with_values(_BASE[owner], values)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_options_go_flat_and_come_back(name):
    for preset in load(name).presets.values():
        values = flat(preset)
        assert with_values(type(preset)(), values) == preset


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden_sizes", "network_options: --network-options hidden_sizes=1"),
        ("checkpoint_seconds", "checkpoint_options: --checkpoint-options seconds=1"),
        ("rms_decay", "optimizer_options: --optimizer-options rmsprop_decay=1"),
        ("learner_devices", "use --device cuda:0,cuda:1"),
        ("from_part", "use --from RUN_DIR:best:encoder"),
        ("port", "use --dashboard PORT"),
    ],
)
def test_an_old_spelling_is_met_with_the_new_one(old, new, capsys):
    with pytest.raises(ConfigurationError, match=f"^{old} .*{new}"):
        make_plan("impala", _BASE["run"], {old: 1})
    flag = "--" + old.replace("_", "-")
    assert main(["train", "impala", "--env", "CartPole-v1", flag, "1"]) == 2
    assert new in capsys.readouterr().err


def test_keys_that_are_not_given_stay():
    options = changed(_BASE["run"], network_options={"hidden_sizes": [8, 8]})
    options = changed(options, network_options={"activation": "relu"})
    assert options.network_options.hidden_sizes == (8, 8)
    assert options.network_options.activation == "relu"


def test_a_group_keeps_the_keys_that_are_not_given():
    paper = load("a3c").presets["paper"]
    other = with_values(paper, {"optimizer_options": {"momentum": 0.5}})
    assert other.optimizer == replace(paper.optimizer, momentum=0.5)
    assert changed(paper, momentum=0.5) == other


def test_the_keywords_that_type_checkers_know_are_the_options():
    def names(kind: type) -> set[str]:
        return set(kind.__required_keys__ | kind.__optional_keys__)

    own = [option_fields(load(each).config) for each in architectures.ARCHITECTURES]
    assert names(TrainOptions) == {*option_fields(RunOptions), *chain(*own)} - {"env"}
    known = get_type_hints(TrainOptions)
    for name, option in chain(*(each.items() for each in own)):
        if get_origin(option.kind) is Literal:
            assert option.kind == known[name]
    assert names(ResumeOptions) == RESUMABLE
    assert names(SweepKeywords) - names(TrainOptions) == set(option_fields(SweepOptions))


def test_there_are_at_most_26_common_options_and_20_of_an_architecture():
    assert len(option_fields(RunOptions)) <= 26
    counts = {name: len(option_fields(load(name).config)) for name in architectures.ARCHITECTURES}
    assert max(counts.values()) <= 20, counts
