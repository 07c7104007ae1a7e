# SPDX-License-Identifier: Apache-2.0
"""`--help` shows the options people use, `--help all` every one, under headings."""

import re

import pytest

from veldt.architectures import ARCHITECTURES, load
from veldt.cli import main as cli
from veldt.cli.parsers import USUAL, USUAL_OWN, run_parser
from veldt.options import RunOptions
from veldt.options.fields import flat, option_fields


def flags(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.M)) - {"help", "format"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_short_help_fits_a_screen_and_the_long_one_has_everything(name):
    short = run_parser("train", name).format_help()
    known = [*option_fields(RunOptions).values(), *option_fields(load(name).config).values()]
    everything = {leaf.flag.removeprefix("--") for leaf in known}
    everything |= {"config", "dry-run", "trust-code"}
    assert 17 <= len(flags(short)) <= 25
    assert {"env", "learning-rate", "total-env-steps"} <= flags(short)
    assert f"veldt train {name} --help all" in short
    assert flags(run_parser("train", name, show_all=True).format_help()) == everything


@pytest.mark.parametrize("arguments", ["--help all", "-h all", "--help=all"])
def test_all_is_asked_for_behind_the_architecture(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "impala", *arguments.split()])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.index("\ncommon options:\n") < text.index("\noptions of impala, optimizer:\n")
    paper = flat(load("impala").presets["paper"])
    assert f"paper: {paper['learning_rate']}" in " ".join(text.split())
    assert "--help all" not in text


def test_the_names_in_the_lists_are_options():
    own = {name for each in ARCHITECTURES for name in option_fields(load(each).config)}
    assert set(option_fields(RunOptions)) >= USUAL
    assert own >= USUAL_OWN
