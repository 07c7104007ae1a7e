# SPDX-License-Identifier: Apache-2.0
"""The process of a run: its signals, its time limit, its standard output and its main module.

A signal may arrive at any moment, often twice, from `timeout`, systemd or Slurm. A handler that
raised could interrupt a save, so signals are recorded and acted on where nothing can be torn.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import psutil

from veldt.errors import ConfigurationError

_SECOND_INTERRUPT_SECONDS = 2.0  # Ctrl-C after so long ends the process without saving
START_SECONDS = 4.0
"""After --max-seconds a run that has not begun ends."""

_terminated_early = False
_json_output: TextIO | None = None


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: save and end, with exit code 0."""


class OutOfTime(BaseException):
    """A time limit has passed."""


def defer_termination() -> None:
    """Keep a SIGTERM that comes before the run begins, so that it still saves a result."""

    def record(*_: object) -> None:
        global _terminated_early
        _terminated_early = True

    signal.signal(signal.SIGTERM, record)


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams, whose numbers files would take otherwise."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def working_directory() -> Path:
    """The working directory, which may have been deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigurationError(
            "the working directory has been deleted; change to one that exists"
        ) from error


def is_ending() -> bool:
    """Whether a SIGTERM came before the run began."""
    return _terminated_early


def _expire(*_: object) -> None:
    raise OutOfTime


class Signals:
    """Handles SIGTERM and SIGINT of one run while entered. Does nothing outside the main thread,
    where signals belong to the host program."""

    def __init__(self) -> None:
        self._received: KeyboardInterrupt | None = None
        self._received_at = 0.0
        self._may_raise = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        global _terminated_early
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._record)
        except ValueError:  # not the main thread
            return self
        if _terminated_early:
            _terminated_early = False
            self._received = Terminated()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
            self._received_at = now
        elif number == signal.SIGINT and now > self._received_at + _SECOND_INTERRUPT_SECONDS:
            raise KeyboardInterrupt
        if self._may_raise:
            raise self._received

    def check(self) -> None:
        """Raise the signal that was received, if any."""
        if self._received is not None:
            raise self._received

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise signals at once within: for long work that can be abandoned at any point."""
        self._may_raise = True
        try:
            yield
        except KeyboardInterrupt:
            self.check()  # a library such as Ray may have replaced the exception by its own
            raise
        finally:
            self._may_raise = False


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise OutOfTime after `seconds`, even while Python code of an environment sleeps."""
    if seconds is None:
        yield
        return
    try:
        before = signal.signal(signal.SIGALRM, _expire)
    except ValueError:  # not the main thread
        yield
        return
    deadline = time.monotonic() + seconds
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    except SystemError as error:  # a library such as Ray has replaced the exception by its own
        if time.monotonic() < deadline:
            raise
        raise OutOfTime from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def process_start() -> float:
    """Start of this process on the monotonic clock."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


def reserve_stdout() -> None:
    """Keep standard output for JSON: everything else written there goes to standard error."""
    global _json_output
    if _json_output is None:
        sys.stdout.flush()
        _json_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)


def output_stream() -> TextIO:
    """The stream that results are written to."""
    return sys.stdout if _json_output is None else _json_output


def check_main_is_guarded() -> None:
    """Refuse a script that starts the run outside of `if __name__ == "__main__":`.

    Node processes import the main module to find the user's classes. A script that starts a run
    while it is imported would start another one in each of them."""
    main = sys.modules["__main__"]
    outer: FrameType | None = sys._getframe()
    while outer and (outer.f_code.co_name != "<module>" or outer.f_globals is not vars(main)):
        outer = outer.f_back
    file = getattr(main, "__file__", None)
    if file is None or outer is None:
        return  # a prompt, a notebook, or another thread
    if main.__spec__ is None and not Path(file).is_file():
        raise ConfigurationError(
            f"this program comes from {file}, where the processes of a run cannot import it; save"
            ' it as a file, or use backend="serial"'
        )
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # a console script in an archive, or no Python file
    line = outer.f_lineno
    for node in tree.body:
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno):
            test = ast.unparse(node.test)
            if "__name__" in test and "__main__" in test:
                return
    raise ConfigurationError(
        f'{file}, line {line}, starts a run outside of if __name__ == "__main__": and would start'
        " it again in each of its processes; put that line under such an if, or use"
        ' backend="serial"'
    )
