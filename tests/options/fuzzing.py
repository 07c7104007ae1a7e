# SPDX-License-Identifier: Apache-2.0
"""Random values for every option of every architecture, and what becomes of them.

A value must be refused with one line, or leave a plan that fits into the machine; a sample of the
plans is trained for real, each in a process of its own that may neither hang nor eat the machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch

from veldt import architectures
from veldt.api import split_options
from veldt.cli.main import main
from veldt.cli.parsers import run_parser
from veldt.environments.processes import die_with, kill_group, lead_group
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import Bounds
from veldt.options.fields import OptionField, option_fields
from veldt.run.plan import make_plan

torch.set_num_threads(1)  # a pool of threads does not survive the fork of a sample
LONGEST_SECONDS = 5.0
_BUSY = 12.0  # how much longer than it computes something may take on a machine with other work
_TRAINING_SECONDS = 1.0
_MOST_WEIGHTS = 10_000_000  # of a trained sample
_MOST_NODES = 300  # each takes some milliseconds to begin and to save
_ADDRESS_SPACE = 12 << 30
_KEPT = ("env", "run_dir", "backend", "dashboard", "port", "json", "quiet")
_KEPT += ("evaluation_episodes",)  # the closing evaluation has 20 s of its own
"""Options that a trained sample has its own values of."""

NUMBERS = (0, 1, -1, 2, 3, 1e-9, 0.5, -0.5, 1e308, -1e308, 2**31, 2**63, 10**30, 65_537, 1e9)
NOT_NUMBERS = (math.nan, math.inf, -math.inf)
WORDS = ("", " ", "nonsense", "none", "None", "true", "0x10", "1e6", "1_000", "--", "*", "a=b")
UNICODE = (
    "naïve",
    "日本",
    "\u202e",
    "\u0661",
    "a\nb",
    "a\tb",
    "%s%n",
    "'; --",
    "../..",
    "x" * 5000,
)
OBJECTS = (None, True, (), (0,), ("a",), [1], {}, {"a": 1}, b"bytes", object(), 1j)
ENVIRONMENTS = (
    *("CartPole-v1", "veldt:kuhn", "NoSuch-v9", "ALE/NoSuch-v5", "veldt:", "pettingzoo:", ":"),
    *("no.such:thing", "veldt:no_such_game", "os:getcwd", "json:loads", "envpool:none"),
)


def raising(**options: object) -> object:
    """An environment, and a network, that cannot be made."""
    raise RuntimeError("nothing comes of it\nnor of a second line")


@dataclass(frozen=True)
class Case:
    """Some options of one architecture with random values, typed or given in Python."""

    architecture: str
    values: dict[str, object]
    typed: bool

    def words(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in self.values.items()]

    def __str__(self) -> str:
        how = "typed" if self.typed else "python"
        values = ", ".join(f"{name}={_short(value)}" for name, value in self.values.items())
        return f"{self.architecture} ({how}): {values}"


@dataclass
class Account:
    """How many ended how; `faults` are those that must not be."""

    values: int = 0
    refused: int = 0
    planned: int = 0
    trained: int = 0
    training_refused: int = 0
    training_ended_with_a_line: int = 0
    too_large_for_a_moment: int = 0
    """Plans that fit into the machine, but whose first update alone takes seconds."""
    longest_seconds: float = 0.0
    longest_start_seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def cases(seed: int, count: int) -> Iterator[Case]:
    """About `count` values: one, two or three options at a time."""
    rng = random.Random(seed)
    names = list(architectures.ARCHITECTURES)
    drawn = 0
    while drawn < count:
        name = rng.choice(names)
        known = options_of(name)
        chosen = rng.sample(list(known), min(rng.choice((1, 1, 1, 2, 3)), count - drawn))
        typed = rng.random() < 0.5
        yield Case(name, {n: value_for(known[n], rng) for n in chosen}, typed)
        drawn += len(chosen)


@cache
def options_of(architecture: str) -> dict[str, OptionField]:
    return {**option_fields(RunOptions), **option_fields(architectures.load(architecture).config)}


def value_for(leaf: OptionField, rng: random.Random) -> object:
    """Half of the time something that the option's type allows, else anything at all."""
    if leaf.name in ("env", "network") and rng.random() < 0.7:
        return rng.choice((*ENVIRONMENTS, raising))
    if rng.random() < 0.5:
        return _allowed(leaf.kind, rng)
    return rng.choice(rng.choice((NUMBERS, NUMBERS, NOT_NUMBERS, WORDS, UNICODE, OBJECTS)))


def _allowed(kind: Any, rng: random.Random) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        [bounds] = [entry for entry in arguments[1:] if isinstance(entry, Bounds)]
        return _within(bounds, arguments[0] is int, rng)
    if origin in (Union, types.UnionType):
        return _allowed(rng.choice(arguments), rng)
    if origin is Literal:
        return rng.choice(arguments)
    if origin is tuple:
        return tuple(_allowed(arguments[0], rng) for _ in range(rng.randint(0, 3)))
    plain: dict[Any, Callable[[], object]] = {
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.randint(-5, 5),
        float: lambda: rng.uniform(-10, 10),
        str: lambda: rng.choice((*WORDS, *UNICODE)),
        types.NoneType: lambda: None,
    }
    return plain.get(kind, lambda: rng.choice(({}, {"a": 1}, {"render_mode": "none"})))()


def _within(bounds: Bounds, whole: bool, rng: random.Random) -> float:
    """At an end, or anywhere between with all magnitudes alike."""
    low, high = max(bounds.low, -1e12), min(bounds.high, 1e18)
    if rng.random() < 0.25:
        value = rng.choice((low, high))
    else:
        first = max(low, 1e-9)
        value = math.exp(rng.uniform(math.log(first), math.log(max(high, first))))
    return round(value) if whole else value


def fuzz(seed: int, num_values: int, num_trainings: int) -> Account:
    """Plan so many values, and train so many of the plans, drawn from the same seed."""
    account = Account()
    planned = [case for case in cases(seed, num_values) if judge(case, account)]
    for case in random.Random(seed).sample(planned, min(num_trainings, len(planned))):
        train(case, account)
    return account


def judge(case: Case, account: Account, limit_seconds: float = LONGEST_SECONDS) -> bool:
    """Plan it; whether there is a plan that can be trained for a moment."""
    account.values += len(case.values)
    began = time.process_time()
    try:
        with _alarm(limit_seconds), _silence():
            plan = make_plan(case.architecture, *split_options(_options(case)))
    except ConfigurationError as error:
        account.refused += 1
        if not str(error).strip() or (not case.typed and "\n" in _without_values(case, error)):
            account.faults.append(f"{case}: not one line: {error}")
        return False
    except _Late:
        account.faults.append(f"{case}: no plan after {limit_seconds:g} s")
        return False
    except BaseException as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(trace.filename).name}:{trace.lineno}"
        account.faults.append(f"{case}: {type(error).__name__} at {where}: {error}")
        return False
    finally:
        account.longest_seconds = max(account.longest_seconds, time.process_time() - began)
    account.planned += 1
    topology = plan.topology
    is_small = topology.num_weights <= _MOST_WEIGHTS and len(topology.nodes) <= _MOST_NODES
    account.too_large_for_a_moment += not is_small
    return is_small


def _options(case: Case) -> dict[str, object]:
    base: dict[str, object] = {"env": architectures.example_env(case.architecture)}
    base["backend"] = "serial"
    if not case.typed:
        return base | case.values
    words = [case.architecture, f"--env={base['env']}", "--backend=serial", *case.words()]
    given = run_parser("train", case.architecture).parse(words)
    del given["architecture"]
    return given


def _without_values(case: Case, error: Exception) -> str:
    """What the message says beside the value itself, which may have lines of its own."""
    text = str(error)
    for value in case.values.values():
        text = text.replace(str(value), "")
    return text


def train(case: Case, account: Account) -> None:
    """Train it for a moment on the serial backend, in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="veldt-fuzz-"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        _train_and_exit(case, folder, reader)
    os.close(reader)
    try:
        code, seconds = _wait(child, _BUSY * LONGEST_SECONDS)
        seconds -= _TRAINING_SECONDS
        account.longest_start_seconds = max(account.longest_start_seconds, seconds)
        _judge_training(case, account, code, folder, seconds)
    finally:
        os.close(writer)  # ends what is left, as this process's own end would
        kill_group(child)
        shutil.rmtree(folder, ignore_errors=True)


def _judge_training(
    case: Case, account: Account, code: int | None, folder: Path, seconds: float
) -> None:
    words = (folder / "errors").read_text(errors="replace").strip().splitlines()
    if code is None or seconds > LONGEST_SECONDS:
        account.faults.append(f"{case}: {seconds:.1f} s more than it was given, {words[-1:]}")
    elif code == 2 and len(words) == 1 and not (folder / "run").exists():
        account.training_refused += 1
    elif code == 1 and words and words[-1].startswith("veldt: "):
        account.training_ended_with_a_line += 1
        if "Traceback" in words[0]:
            account.faults.append(f"{case}: {words[-1]}")
    elif code == 0:
        result = json.loads((folder / "run" / "result.json").read_text())
        account.trained += result["env_steps"] > 0
        if not result["env_steps"]:
            account.faults.append(f"{case}: ended with 0 and nothing was done")
    else:
        account.faults.append(f"{case}: exit {code}, {words[-1:]}")


def _train_and_exit(case: Case, folder: Path, lifeline: int) -> None:
    """Never returns."""
    lead_group()
    assert die_with(lifeline)
    os.chdir(folder)
    errors = os.open(folder / "errors", os.O_CREAT | os.O_WRONLY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(errors, 2)
    sys.stdout = sys.stderr = os.fdopen(errors, "w", buffering=1)  # not what a test captures
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    values = {name: value for name, value in case.values.items() if name not in _KEPT}
    words = Case(case.architecture, values, True).words()
    words += [f"--env={architectures.example_env(case.architecture)}", "--backend=serial"]
    words += ["--run-dir=run", "--quiet"]
    ends = {"max_seconds": _TRAINING_SECONDS, "total_env_steps": 3000, "evaluation_episodes": 0}
    for name in ends.keys() - values.keys():
        words.append(f"--{name.replace('_', '-')}={ends[name]}")
    try:
        code = main(["train", case.architecture, *words])
    except BaseException:
        traceback.print_exc()
        code = 70
    os._exit(code)


def _wait(child: int, seconds: float) -> tuple[int | None, float]:
    """The exit code, None if it had to be killed, and the seconds that it computed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        time.sleep(0.01)
    kill_group(child)
    os.waitpid(child, 0)
    return None, seconds


class _Late(BaseException):
    """Not an Exception, so that nobody on the way takes it for a bad option."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def late(signum: int, frame: object) -> None:
        raise _Late

    # Of this process's own time: how busy the machine is must not decide. Sleepers have longer.
    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, _BUSY * seconds),
    }
    before = {number: signal.signal(number, late) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
