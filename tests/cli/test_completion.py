# SPDX-License-Identifier: Apache-2.0
"""Shell completion: what bash offers is what the parsers of the commands know."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from veldt.architectures import ARCHITECTURES
from veldt.cli import main as cli
from veldt.cli.parsers import SHELLS, WITHOUT_ARCHITECTURE, command_parser, run_parser

BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture(scope="module")
def complete():
    """Runs bash with the script and answers what it offers for the last of `words`."""
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("builtins.print", lambda text, **_: printed.append(text))
        cli.main(["completion", "bash"])

    def offered(*words):
        line = " ".join(f"'{word}'" for word in words)
        program = (
            f"{printed[0]}\nCOMP_WORDS=(veldt {line}); COMP_CWORD={len(words)};"
            " _shtab_veldt; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        # Without a PATH nothing can be started: every word is in the script.
        done = subprocess.run(
            [BASH, "-s"], input=program, capture_output=True, text=True, env={"PATH": ""}
        )
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    return offered


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_has_every_command_architecture_and_environment(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*ARCHITECTURES, *cli.COMMANDS, "CartPole-v1"))
    assert "trajectory-steps" in text


def test_bash_completes_commands_architectures_and_values(complete):
    assert complete("") == set(cli.COMMANDS)
    assert complete("train", "") == set(ARCHITECTURES)
    assert complete("train", "impala", "--trajectory-s") == {"--trajectory-steps"}
    assert complete("train", "impala", "--backend", "s") == {"serial"}
    assert complete("train", "impala", "--backend", "serial", "--env", "CartP") == {"CartPole-v1"}
    assert complete("describe", "dqn", "--format", "") == {"text", "mermaid"}
    assert complete("train", "impala", "--pbt-rule", "") == {"sample_factory", "impala"}
    assert complete("completion", "") == set(SHELLS)


def test_bash_completes_run_directories(complete, tmp_path):
    (tmp_path / "run-7").mkdir()
    (tmp_path / "run-file").touch()
    train = ("train", "dqn")
    for words in (("resume",), ("watch",), (*train, "--run-dir"), (*train, "--from")):
        assert complete(*words, f"{tmp_path}/run") == {f"{tmp_path}/run-7"}, words
    found = complete("sweep", "dqn", "--config", f"{tmp_path}/run")
    assert found == {f"{tmp_path}/run-7", f"{tmp_path}/run-file"}


def options_of(parser):
    shown = [action for action in parser._actions if action.help != "==SUPPRESS=="]
    return {text for action in shown for text in action.option_strings}


def test_bash_offers_every_option_of_a_command(complete):
    for command in WITHOUT_ARCHITECTURE:
        assert complete(command, "-") == options_of(command_parser(command)), command
    for command, name in (("train", "impala"), ("sweep", "apex"), ("describe", "league")):
        known = options_of(run_parser(command, name, show_all=True))
        assert complete(command, name, "-") == known, (command, name)
