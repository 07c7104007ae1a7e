# SPDX-License-Identifier: Apache-2.0
"""The policies that are shipped load, act, score as their cards say, and are small."""

import io
import json

import numpy as np
import pytest
import torch

import veldt
from benchmarks.zoo import trim
from veldt.cli.main import main
from veldt.zoo import ZOO, cards

CARDS = cards()


@pytest.mark.parametrize("name", CARDS)
def test_every_policy_loads_and_acts_without_its_environment(name):
    policy, card = veldt.load(f"zoo:{name}"), CARDS[name]
    assert all(vars(policy)[key] == card[key] for key in ("architecture", "env", "env_steps"))
    policy.observation_space.seed(0)
    seen, first = policy.observation_space.sample(), np.arange(policy.num_choices) == 0
    assert policy.action_space.contains(policy.act(seen))
    assert not policy.num_choices or policy.act(seen, mask=first) == 0


def test_the_zoo_is_small_and_has_no_code():
    files = [path for path in ZOO.glob("*/**/*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors"}
    assert sum(path.stat().st_size for path in files) < 15_000_000


def test_a_card_is_shown_and_its_score_is_reached(capsys):
    score = CARDS["cart_pole"]["score"]
    assert main(["zoo"]) == main(["info", "zoo:cart_pole"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(score["text"]) == 2
    assert f"repeat it: {CARDS['cart_pole']['command']}" in shown
    assert main(["zoo", "--json"]) == main(["evaluate", "zoo:cart_pole", "--json"]) == 0
    listed, evaluated = map(json.loads, capsys.readouterr().out.splitlines())
    assert listed == CARDS
    assert score["low"] <= evaluated["mean"] <= score["high"]


@pytest.mark.parametrize("game", [name for name in CARDS if CARDS[name]["env"] == f"veldt:{name}"])
def test_a_person_who_plays_one_move_after_the_other_does_not_win(game, monkeypatch, capsys):
    moves = "\n".join(["x", *"123456789" * 9, ""])
    monkeypatch.setattr("sys.stdin", io.StringIO(moves))
    assert main(["play", f"zoo:{game}"]) == 0
    shown = capsys.readouterr().out
    assert "'x' is no move now" in shown
    assert shown.splitlines()[-1].startswith(("you lose", "you draw"))
    assert main(["play", f"zoo:{game}", "--env", "veldt:kuhn"]) == 2
    assert f"has learned veldt:{game}, not veldt:kuhn" in capsys.readouterr().err


def test_an_entry_acts_as_the_run_it_is_made_from(short_run, tmp_path):
    trim(short_run, tmp_path / "entry", "veldt train impala")
    rows = {"observation": torch.randn(50, 4)}
    run, entry = (veldt.load(path).module()(rows) for path in (short_run, tmp_path / "entry"))
    assert run["logits"].equal(entry["logits"])
