# SPDX-License-Identifier: Apache-2.0
"""Random values of all options: each is refused in one line, or gives a plan that can be trained.

A sample of the plans is trained for a moment by the real program.
"""

import contextlib
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest

from veldt import architectures
from veldt.api import split_options
from veldt.cli.parsers import run_parser
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import Bounds
from veldt.options.fields import OptionField, option_fields
from veldt.run.plan import make_plan

VALUES = int(os.environ.get("VELDT_FUZZ_VALUES", 300))  # 10,000 at night
TRAININGS = int(os.environ.get("VELDT_FUZZ_TRAININGS", 6))
SEED = int(os.environ.get("VELDT_FUZZ_SEED", 0))
ROOT = Path(architectures.__file__).parents[2]
LIMITED = ("bash", "-c", f'ulimit -v {12 << 20} && exec "$@"', "-")
"""To 12 GiB of memory; a function before the exec would run gRPC's handlers of a fork."""
LONGEST_SECONDS = 5.0
MOST_WEIGHTS, MOST_NODES = 10_000_000, 300
"""Of a trained sample: more take seconds to start and to save."""
OF_TRAINED_SAMPLES = ("env", "run_dir", "backend", "dashboard", "json", "quiet")

NUMBERS = (0, 1, -1, 2, 3, 1e-9, 0.5, -0.5, 1e308, -1e308, 2**31, 2**63, 10**30, 65_537, 1e9)
NOT_NUMBERS = (math.nan, math.inf, -math.inf)
WORDS = ("", " ", "nonsense", "none", "None", "true", "0x10", "1e6", "1_000", "--", "*", "a=b")
UNICODE = (
    *("naïve", "日本", "\u202e", "\u0661", "a\nb", "a\tb", "%s%n", "'; --", "../.."),
    "x" * 5000,
)
OBJECTS = (None, True, (), (0,), ("a",), [1], {}, {"a": 1}, b"bytes", object(), 1j)
ENVIRONMENTS = (
    *("CartPole-v1", "veldt:kuhn", "NoSuch-v9", "ALE/NoSuch-v5", "veldt:", "pettingzoo:", ":"),
    *("no.such:thing", "veldt:no_such_game", "os:getcwd", "json:loads", "envpool:none"),
)


def raising(**options: object) -> object:
    """An environment, and a network, that cannot be made."""
    raise RuntimeError("it cannot be made\nfor a reason of two lines")


@dataclass(frozen=True)
class Case:
    """Some options of one architecture with random values, on the command line or in Python."""

    architecture: str
    values: dict[str, object]
    typed: bool

    def arguments(self, *without: str) -> list[str]:
        values = {name: value for name, value in self.values.items() if name not in without}
        return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in values.items()]

    def __str__(self) -> str:
        values = ", ".join(f"{name}={repr(value)[:60]}" for name, value in self.values.items())
        return f"{self.architecture} ({'typed' if self.typed else 'python'}): {values}"


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


def value_for(option: OptionField, rng: random.Random) -> object:
    """Half of the time a value that the option's type allows, else any."""
    if option.name in ("env", "network") and rng.random() < 0.7:
        return rng.choice((*ENVIRONMENTS, raising))
    if rng.random() < 0.5:
        return _allowed(option.kind, rng)
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
    """An end, or a value between the ends with all magnitudes equally likely."""
    low, high = max(bounds.low, -1e12), min(bounds.high, 1e18)
    if rng.random() < 0.25:
        value = rng.choice((low, high))
    else:
        first = max(low, 1e-9)
        value = math.exp(rng.uniform(math.log(first), math.log(max(high, first))))
    return round(value) if whole else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def planned(case: Case, limit_seconds: float = LONGEST_SECONDS) -> bool | str:
    """Whether there is a plan that can be trained for a moment; a text says what is wrong."""
    try:
        with time_limit(limit_seconds), contextlib.redirect_stdout(io.StringIO()):
            plan = make_plan(case.architecture, *split_options(_options(case)))
    except ConfigurationError as error:
        text = str(error)
        for value in case.values.values():  # a value may have lines of its own
            text = text.replace(str(value), "")
        is_line = str(error).strip() and (case.typed or "\n" not in text)
        return False if is_line else f"{case}: not one line: {error}"
    except TimeIsUp:
        return f"{case}: no plan after {limit_seconds:g} s"
    except BaseException as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        return f"{case}: {type(error).__name__} at {trace.filename}:{trace.lineno}: {error}"
    topology = plan.topology
    return topology.num_weights <= MOST_WEIGHTS and len(topology.nodes) <= MOST_NODES


def _options(case: Case) -> dict[str, object]:
    base: dict[str, object] = {"env": architectures.example_env(case.architecture)}
    base["backend"] = "serial"
    if not case.typed:
        return base | case.values
    arguments = [case.architecture, f"--env={base['env']}", "--backend=serial", *case.arguments()]
    given = run_parser("train", case.architecture).parse(arguments)
    del given["architecture"]
    return given


class TimeIsUp(BaseException):
    """Not an Exception, so that no code takes it for a bad option."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Of this process's CPU time, because the machine may be busy; sleepers have longer."""

    def raise_it(number: int, frame: object) -> None:
        raise TimeIsUp

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, raise_it) for number in timers}
    for number, timer in timers.items():
        signal.setitimer(timer, seconds if number == signal.SIGPROF else 12 * seconds)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])


def trained(case: Case, folder: Path) -> str | None:
    """Train it for a moment with the real program; what is wrong, if anything is."""
    folder.mkdir()
    arguments = [f"--env={architectures.example_env(case.architecture)}", "--backend=serial"]
    arguments += ["--run-dir=run", "--quiet", *case.arguments(*OF_TRAINED_SAMPLES)]
    ends = {"max_seconds": 20.0, "total_env_steps": 3000, "evaluation_episodes": 0}
    for name in ends.keys() - case.values.keys():
        arguments.append(f"--{name.replace('_', '-')}={ends[name]}")
    try:
        done = subprocess.run(
            [*LIMITED, sys.executable, "-m", "veldt", "train", case.architecture, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=90,
        )
    except subprocess.TimeoutExpired:
        return f"{case}: no end after 90 s"
    lines = done.stderr.strip().splitlines()
    if done.returncode == 0:
        result = json.loads((folder / "run" / "result.json").read_text())
        return None if result["env_steps"] else f"{case}: ended with 0 and nothing was done"
    is_line = len(lines) == 1 and lines[0].startswith("veldt: ")
    if is_line and (done.returncode == 1 or not (folder / "run").exists()):
        return None
    return f"{case}: exit {done.returncode}, {lines[-1:]}"


@pytest.mark.slow
def test_no_value_ends_in_a_trace_a_hang_or_a_run_that_cannot_work(tmp_path):
    found = [(case, planned(case)) for case in cases(SEED, VALUES)]
    faults = [fault for _, fault in found if isinstance(fault, str)]
    good = [case for case, is_planned in found if is_planned is True]
    assert len(good) > VALUES // 20
    assert sum(is_planned is False for _, is_planned in found) > VALUES // 20
    sample = random.Random(SEED).sample(good, min(TRAININGS, len(good)))
    ends = [trained(case, tmp_path / str(number)) for number, case in enumerate(sample)]
    assert not [*faults, *filter(None, ends)]
