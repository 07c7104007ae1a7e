# SPDX-License-Identifier: Apache-2.0
"""Signals of a run, and programs that its processes cannot import."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from veldt.environments.lookup import imported_function
from veldt.run.process import OutOfTime, Signals, Terminated, time_limit

ROOT = Path(__file__).parents[2]
CALL = 'veldt.train("impala", {env}, total_env_steps=200, run_dir="run", num_actors=1)'
BARE = "import veldt\n" + CALL.format(env='"CartPole-v1"') + "\n"


def ran(tmp_path: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        input=text,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_script_without_a_guard_is_shown_the_fix(tmp_path):
    (tmp_path / "bare.py").write_text(BARE)
    done = ran(tmp_path, "bare.py")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert 'line 2, starts a run outside of if __name__ == "__main__":' in last
    assert len(done.stderr.splitlines()) < 20  # one traceback, of one process
    assert not (tmp_path / "run").exists()


def test_a_program_from_standard_input_is_refused(tmp_path):
    done = ran(tmp_path, "-", text=BARE)
    last = done.stderr.strip().splitlines()[-1]
    assert "this program comes from <stdin>" in last
    assert 'save it as a file, or use backend="serial"' in last
    assert not (tmp_path / "run").exists()


def test_own_networks_are_found_where_own_environments_are(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text("def small(spec):\n    return 'small'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert imported_function("own_nets:small", "network")(None) == "small"


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_library_that_raises_its_own_interrupt_does_not_hide_which_signal_came():
    """Ray does: its caller sees KeyboardInterrupt for any exception of a handler."""

    def wait(signals: Signals) -> None:
        with signals.interruptible():
            try:
                send(signal.SIGTERM)
            except Terminated:
                raise KeyboardInterrupt from None

    with Signals() as signals, pytest.raises(Terminated):
        wait(signals)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_is_only_recorded_until_it_is_checked(number, kind):
    with Signals() as signals:
        send(number)
        with pytest.raises(KeyboardInterrupt) as raised:
            signals.check()
        assert type(raised.value) is kind


def replaces_the_exception() -> None:
    try:
        time.sleep(10.0)
    except OutOfTime:
        raise SystemError("returned a result with an exception set") from None


def test_a_time_limit_within_a_library_that_replaces_the_exception():
    with pytest.raises(OutOfTime), time_limit(0.05):
        replaces_the_exception()
