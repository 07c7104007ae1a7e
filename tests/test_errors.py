# SPDX-License-Identifier: Apache-2.0
"""Hints for those who misspell a name."""

from importlib import metadata
from pathlib import Path

from veldt.architectures import ARCHITECTURES, load
from veldt.cli.parsers import run_parser
from veldt.errors import _ALSO_CALLED, did_you_mean, install, nearest
from veldt.options import RunOptions
from veldt.options.fields import option_fields

ROOT = Path(__file__).parent.parent


def test_an_unknown_name_is_met_with_the_nearest():
    known = ["impala", "apex", "apex_dpg"]
    assert did_you_mean("impla", known) == "did you mean impala?"
    assert nearest("apex_d", known, 2) == ["apex_dpg", "apex"]
    assert did_you_mean("zzz", known, "there are three") == "there are three"
    assert did_you_mean("zzz", known).startswith("there are ")


def test_options_of_other_libraries_are_known():
    known = [
        text for action in run_parser("train", "ppo")._actions for text in action.option_strings
    ]
    for theirs, ours in (
        *(("n-steps", "trajectory-steps"), ("wandb", "trackers wandb"), ("log-dir", "run-dir")),
        *(("clip-range", "ppo-clip"), ("total-timesteps", "total-env-steps")),
        *(("n-envs", "num-envs"), ("vf-coef", "loss-options value_coefficient=0.5")),
    ):
        assert did_you_mean(f"--{theirs}", known) == f"did you mean --{ours}?"
    assert did_you_mean("--learning-starts", known, "see --help") == "see --help"  # of a replay


def test_every_name_of_another_library_leads_to_an_option():
    known = {*option_fields(RunOptions)}
    known |= {name for each in ARCHITECTURES for name in option_fields(load(each).config)}
    theirs = {name for text in _ALSO_CALLED.values() for name in text.split(" ")[0].split("|")}
    assert theirs <= known


def test_an_extra_is_installed_from_where_veldt_is(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    assert install("atari") == 'pip install "veldt[atari]"'

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install("atari") == f'pip install -e "{ROOT}[atari]"'
