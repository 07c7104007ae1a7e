# SPDX-License-Identifier: Apache-2.0
"""Saving is interrupted: by kill -9 at every system call, and by a disk that fails."""

import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from checkpoint_contents import assert_whole, save, store_in

from veldt.checkpoints.format import verify
from veldt.checkpoints.store import CheckpointError, CheckpointStore

WRITES = ("mkdir", "write", "fsync", "rename")
DELETIONS = ("unlink", "rmdir")

# The child does nothing but save and is killed; it never returns to the threads it lacks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def _intercept(
    patch: pytest.MonkeyPatch, names: tuple[str, ...], strike: Callable[..., Any]
) -> None:
    """Pass every later call of these `os` functions to `strike(number, original, *arguments)`."""
    calls = iter(range(10**9))

    def intercepted(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: strike(next(calls), original, *arguments, **named)

    for name in names:
        patch.setattr(os, name, intercepted(getattr(os, name)))


def _forked(child: Callable[[], None]) -> int:
    """Run `child` in a process of its own and return the process id."""
    process = os.fork()
    if process == 0:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    return process


def _save_and_die(store: CheckpointStore, step: int, fatal: int) -> None:
    def strike(number: int, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if number == fatal:
            if original.__name__ == "write":
                original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    _intercept(pytest.MonkeyPatch(), WRITES + DELETIONS, strike)
    save(store, step)


def test_killed_at_every_system_call_of_a_save(tmp_path):
    for step in range(3):
        save(store_in(tmp_path), step)
    kills, died = 0, True
    while died:
        before = assert_whole(store_in(tmp_path).newest())
        process = _forked(partial(_save_and_die, store_in(tmp_path), before + 1, kills))
        exit_code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert exit_code in (0, -signal.SIGKILL)
        died = exit_code != 0
        kills += died
        store = store_in(tmp_path)
        assert assert_whole(store.newest()) in (before, before + 1)
        for path in tmp_path.glob("checkpoint-*"):
            verify(path)  # an old one that is being deleted is never seen half gone
        save(store, before + 2)
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]
        assert len(os.listdir(tmp_path)) == 2
    assert kills > 25


def test_a_reader_during_writes_always_finds_a_checkpoint(tmp_path):
    save(store_in(tmp_path), 0)

    def save_for_ever() -> None:
        store = store_in(tmp_path, keep=1)
        for step in range(1, 10**9):
            save(store, step)

    process = _forked(save_for_ever)
    try:
        store, found = store_in(tmp_path), [0]
        while found[-1] < 40:
            checkpoint = store.newest()
            found.append(checkpoint.step)
        assert found == sorted(found)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _save_with_failing_disk(store: CheckpointStore, step: int, working: int, code: int) -> str:
    """Let `working` calls pass and fail all later ones; the error's text, or "" if it succeeded."""

    def strike(number: int, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if number >= working:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        _intercept(patch, WRITES, strike)
        try:
            save(store, step)
        except CheckpointError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_from_any_call_on(tmp_path, code):
    store = store_in(tmp_path)
    for step in range(3):
        save(store, step)
    working_calls, message = 0, os.strerror(code)
    while message:
        before = assert_whole(store.newest())
        message = _save_with_failing_disk(store, before + 1, working_calls, code)
        assert os.strerror(code) in (message or os.strerror(code))
        working_calls += 1
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]
        assert assert_whole(store.newest()) in (before, before + 1)
        save(store, before + 2)
    assert working_calls > 15
