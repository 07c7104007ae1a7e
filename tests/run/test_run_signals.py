# SPDX-License-Identifier: Apache-2.0
"""Signals of a run: what is raised where they may strike."""

from __future__ import annotations

import os
import signal

import pytest

from veldt.run.process import Signals, Terminated


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def wait_like_ray(signals: Signals) -> None:
    with signals.interruptible():
        try:
            send(signal.SIGTERM)
        except Terminated:
            raise KeyboardInterrupt from None


def test_a_library_that_raises_its_own_interrupt_does_not_hide_which_signal_came():
    """Ray does: whatever a handler raised while it waited, its caller sees KeyboardInterrupt."""
    with Signals() as signals, pytest.raises(Terminated):
        wait_like_ray(signals)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_outside_of_what_may_be_left_anywhere_a_signal_is_only_noted(number, kind):
    with Signals() as signals:
        send(number)
        with pytest.raises(KeyboardInterrupt) as raised:
            signals.check()
        assert type(raised.value) is kind
