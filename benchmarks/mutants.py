# SPDX-License-Identifier: Apache-2.0
"""How many small changes of the core the quick tests notice.

    make mutants                                  # 200 mutants, about an hour on 2 quiet cores
    make mutants ARGS="--count 20 --seed 3 --only losses replay"
    make mutants ARGS="--again"                   # those that are not killed yet
    make mutants ARGS="--again --tests tests/roles/test_learner.py"

Each mutant changes one operator, number, condition or statement of one function, drawn by --seed.
First the quick tests run once on the unchanged tree: a tracer notes which of them call which
function, and a test that fails is left out. Then each mutant faces the tests that call its function
in a copy of the tree. A mutant is killed by a test that fails twice in a row; tests that were not
reached within --seconds count for nothing. Survivors are missing tests, or changes that
alter nothing: write into "reason" which ("equivalent: ..."), it is kept.
Writes benchmarks/results/mutants.json after each mutant. With --tests, the given tests run
instead, the slow ones too, and their kills count as "killed slow".
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from queue import Queue
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
FOLDERS = (
    "losses", "roles", "replay", "backends", "checkpoints", "run", "league", "environments",
    "optimizers.py",
)  # fmt: skip
_LEFT_OUT = ("backends/ray",)  # its tests are all slow
_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def sites(tree: ast.Module) -> list[ast.AST]:
    """Nodes that a mutant may change: no annotations, docstrings, messages or constants' tables."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        hidden: list[Any] = []
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            hidden = [node]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            hidden = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            hidden = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            hidden = [node]
        skipped |= {id(part) for each in hidden if each for part in ast.walk(each)}
    inside = [n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)]
    found = {id(node): node for node in inside if id(node) not in skipped and changed(node)}
    return list(found.values())


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one small change, or None where there is none to make."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _SWAPS:
            return ast.Compare(node.left, [_SWAPS[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in _SWAPS:
            return ast.BinOp(node.left, _SWAPS[type(op)](), node.right)
        case ast.BoolOp(op=op):
            return ast.BoolOp(_SWAPS[type(op)](), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            return node.operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            return ast.Call(ast.Name(_NAMES[name]), node.args, node.keywords)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
            return ast.Pass()
        case ast.If(test=test):
            return ast.IfExp(ast.Constant(True), test, test)  # a mark: the test becomes True
    return None


def mutant(path: str, source: str, node: Any) -> dict[str, Any]:
    """The change of `node` as whole lines before and after; all other lines stay as they are."""
    if isinstance(node, ast.If):
        node, text = node.test, "True"
    else:
        new = changed(node)
        assert new is not None
        text = ast.unparse(ast.fix_missing_locations(new))
        text = text if isinstance(new, ast.stmt) else f"({text})"
    lines = source.encode().split(b"\n")[node.lineno - 1 : node.end_lineno]
    after = lines[0][: node.col_offset] + text.encode() + lines[-1][node.end_col_offset :]
    return {
        "path": path,
        "line": node.lineno,
        "before": [line.decode() for line in lines],
        "after": after.decode().split("\n"),
        "outcome": "open",
    }


def drawn(count: int, seed: int, only: list[str]) -> list[dict[str, Any]]:
    """Mutants, every site of the core equally likely."""
    places = []
    for folder in only:
        base = ROOT / "veldt" / folder
        for path in [base] if base.suffix else sorted(base.rglob("*.py")):
            if not path.relative_to(ROOT / "veldt").as_posix().startswith(_LEFT_OUT):
                source = path.read_text("utf-8")
                name = path.relative_to(ROOT).as_posix()
                places += [(name, source, node) for node in sites(ast.parse(source))]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    return [mutant(name, source, node) for name, source, node in chosen]


def placed(change: dict[str, Any], source: str) -> tuple[str, int]:
    """The changed source, and where in it the change is. LookupError if its lines are gone."""
    lines, before = source.split("\n"), change["before"]
    found = [n for n in range(len(lines)) if lines[n : n + len(before)] == before]
    if not found:
        raise LookupError(change["path"])
    at = min(found, key=lambda n: abs(n + 1 - change["line"]))
    return "\n".join([*lines[:at], *change["after"], *lines[at + len(before) :]]), at + 1


def function_at(source: str, line: int, outermost: bool = False) -> int:
    """First line, with decorators, of a function around `line`, the innermost by default."""
    functions = [f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef)]
    starts = {min([f.lineno, *(d.lineno for d in f.decorator_list)]): f for f in functions}
    around = [start for start, f in starts.items() if start <= line <= (f.end_lineno or 0)]
    return min(around) if outermost else max(around)


class Plugin:
    """Selects and orders the tests and ends in time; may note which call which functions."""

    def __init__(self, order: list[str], trace: bool, seconds: float) -> None:
        self._trace, self._seconds = trace, seconds
        self._package = f"{Path.cwd()}/veldt/"
        self._order = {test: place for place, test in enumerate(order) if "::" in test}
        self._caller = "import"  # a test, a fixture that several tests share, or the import
        self._calls: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._fixtures: dict[str, list[str]] = {}
        self.failed: list[str] = []
        self.is_late = False

    def _called(self, frame: Any, _event: str, _argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._package):
            self._calls[self._caller].add((code.co_filename, code.co_firstlineno))

    @contextmanager
    def _calling(self, caller: str) -> Iterator[None]:
        before, self._caller = self._caller, caller
        if self._trace:
            sys.settrace(self._called)
            threading.settrace(self._called)
        try:
            yield
        finally:
            self._caller = before

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._order:
            items[:] = [item for item in items if item.nodeid in self._order]
            items.sort(key=lambda item: self._order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        with self._calling("import"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._fixtures[item.nodeid] = list(item.fixturenames)
        with self._calling(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        shared = fixturedef.scope != "function"
        with self._calling(f"fixture {fixturedef.argname}" if shared else self._caller):
            return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_teardown(self, item: Any) -> None:
        if sum(os.times()[:4]) > self._seconds:  # of the processor: the machine may be busy
            self.is_late, item.session.shouldstop = True, "out of time"

    def functions(self) -> dict[str, list[str]]:
        """Functions, as path:line, that each test and its fixtures call; "import" comes first."""
        threading.settrace(None)
        sys.settrace(None)
        found = {"import": self._calls["import"]}
        for test, names in self._fixtures.items():
            shared = [self._calls.get(f"fixture {name}", set()) for name in names]
            found[test] = self._calls.get(test, set()).union(*shared)
        return {
            test: [f"{Path(file).relative_to(Path.cwd())}:{line}" for file, line in list(places)]
            for test, places in found.items()
        }


def is_swapped(living: list[FunctionType], path: str, line: int) -> bool:
    """Give the `living` functions around `line` the code that is now in the file, if that changes
    anything and is possible: closures, default values and decorators need a new process."""
    file = Path.cwd() / path
    start = function_at(file.read_text("utf-8"), line, outermost=True)
    found = [compile(file.read_text("utf-8"), str(file), "exec")]
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    new = next(c for c in found if c.co_firstlineno == start and c.co_flags & inspect.CO_OPTIMIZED)
    own = (str(file), new.co_qualname)
    around = [f for f in living if (f.__code__.co_filename, f.__code__.co_qualname) == own]
    try:
        for each in around:
            if each.__code__ == new:
                return False
            each.__code__ = new
    except ValueError:
        return False
    return bool(around)


def serve(is_warm: bool) -> None:
    """Runs pytest in a fork for each line of input: libraries are imported once, and all tests
    too if it is warm."""
    import gymnasium  # noqa: F401
    import torch  # noqa: F401

    living: list[FunctionType] = []
    if is_warm:
        with open(os.devnull, "w") as null, redirect_stdout(null):
            pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"])
        # isinstance would ask proxies for their class.
        living = [each for each in gc.get_objects() if type(each) is FunctionType]
        gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            log = os.open(order["answer"] + ".log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for descriptor in range(3):
                os.dup2(log, descriptor)
            if not is_warm or is_swapped(living, *order["place"]):
                Path(order["answer"]).write_text(json.dumps(answered(order)), encoding="utf-8")
            os._exit(0)
        end = time.monotonic() + 20 * order["seconds"] + 300  # the machine may be busy
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests have left behind
        print("hung" if time.monotonic() > end else "done", flush=True)


def answered(order: dict[str, Any]) -> dict[str, Any]:
    plugin = Plugin(order["tests"], order["trace"], order["seconds"])
    given = ["-q", "--reruns", "1", "-p", "no:cacheprovider", *order["options"]]
    files = dict.fromkeys(test.split("::")[0] for test in order["tests"])
    code = pytest.main([*given, *files], plugins=[plugin])
    functions = plugin.functions() if order["trace"] else {}
    found = {"failed": plugin.failed, "is_late": plugin.is_late, "functions": functions}
    return {"code": code, **found}


class Tree:
    """A copy of the tree, and processes that run tests in it."""

    def __init__(self, folder: Path) -> None:
        ignored = shutil.ignore_patterns(".git", ".venv", ".peers", "__pycache__", "runs", "build")
        self._path = shutil.copytree(ROOT, folder / "tree", ignore=ignored)
        self._answer = folder / "answer.json"
        self._servers: dict[bool, subprocess.Popen[str]] = {}

    def _server(self, is_warm: bool) -> subprocess.Popen[str]:
        begin = "import sys; sys.path.append('benchmarks'); import mutants"
        places = f"{self._path}:{self._path / 'client'}"
        if is_warm not in self._servers:
            self._servers[is_warm] = subprocess.Popen(
                [sys.executable, "-c", f"{begin}; mutants.serve({is_warm})"], cwd=self._path,
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return self._servers[is_warm]

    def run(
        self,
        tests: list[str],
        seconds: float,
        *options: str,
        trace: bool = False,
        place: tuple[str, int] | None = None,
    ) -> dict[str, Any] | None:
        """What became of the tests; with a place, None if its code cannot be swapped."""
        self._answer.unlink(missing_ok=True)
        order = {"tests": tests, "seconds": seconds, "options": options, "trace": trace}
        server = self._server(is_warm=place is not None)
        assert server.stdin
        assert server.stdout
        text = json.dumps({**order, "place": place, "answer": str(self._answer)})
        server.stdin.write(text + "\n")
        server.stdin.flush()
        if server.stdout.readline() == "hung\n":
            return {"code": -1, "failed": ["hung"], "is_late": False}
        if self._answer.exists():
            found: dict[str, Any] = json.loads(self._answer.read_text("utf-8"))
            return found
        return None

    def judge(self, change: dict[str, Any], tests: list[str], seconds: float, slow: bool) -> None:
        """Sets the outcome of a mutant, and the test that has killed it."""
        began = time.monotonic()
        target = self._path / change["path"]
        original = target.read_text("utf-8")
        target.write_text(placed(change, original)[0], encoding="utf-8")
        options = ["-x", *([] if slow else ["-m", "not slow"])]
        answer = None
        if not slow:
            place = (change["path"], change["line"])
            answer = self.run(tests, seconds, *options, place=place)
        answer = answer or self.run(tests, seconds, *options)
        assert answer is not None
        target.write_text(original, encoding="utf-8")
        change["tests"], change["seconds"] = len(tests), round(time.monotonic() - began)
        change["is_late"] = answer["is_late"]
        if answer["code"] in (0, 5) or (answer["is_late"] and not answer["failed"]):
            change["outcome"] = "survived"
        else:
            change["outcome"] = "killed slow" if slow else "killed"
            change["by"] = (answer["failed"] or ["import"])[0]


class Examination:
    """Trees of which each judges one mutant at a time."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._trees: Queue[Tree] = Queue()
        for job in range(jobs):
            self._trees.put(Tree(folder / str(job)))
        self._pool = ThreadPoolExecutor(jobs)

    def each(self, action: Any, places: Any) -> Iterator[Any]:
        def one(place: Any) -> Any:
            tree = self._trees.get()
            try:
                return action(tree, place)
            finally:
                self._trees.put(tree)

        return self._pool.map(one, places)


def tests_of_functions(examination: Examination) -> dict[str, list[str]]:
    """Tests that call each function, those that call the fewest others first."""

    def traced(tree: Tree, place: Path) -> dict[str, list[str]]:
        began, name = time.monotonic(), place.relative_to(ROOT).as_posix()
        answer = tree.run([name], 3600, "-m", "not slow", trace=True)
        assert answer is not None
        again = tree.run(answer["failed"], 3600) if answer["failed"] else answer
        assert again is not None
        failed = set(again["failed"])
        print(f"{name}: {time.monotonic() - began:.0f} s, failed: {sorted(failed)}", flush=True)
        return {test: calls for test, calls in answer["functions"].items() if test not in failed}

    files = (ROOT / "tests").rglob("test_*.py")
    places = sorted({ROOT / "tests" / file.relative_to(ROOT / "tests").parts[0] for file in files})
    called: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for found in examination.each(traced, places):
        everywhere = set(found.pop("import"))
        for test, calls in found.items():
            for function in {*calls, *everywhere}:
                called[function].append((len(calls), test))
    return {function: [test for _, test in sorted(tests)] for function, tests in called.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=FOLDERS, choices=FOLDERS, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=60, help="of the processor for one mutant")
    parser.add_argument("--again", action="store_true", help="those of the file not killed yet")
    parser.add_argument("--tests", nargs="+", help="these tests instead of the quick ones")
    parser.add_argument("--map", type=Path, help="keeps which tests call which function")
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.again:
        document = json.loads(arguments.result.read_text("utf-8"))
    else:
        changes = drawn(arguments.count, arguments.seed, arguments.only)
        document = {"seed": arguments.seed, "mutants": changes}
    todo = [
        each for each in document["mutants"]
        if each["outcome"] in ("open", "survived")
        and not each.get("reason", "").startswith("equivalent")
        and each["path"].startswith(tuple(f"veldt/{folder}" for folder in arguments.only))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="veldt-mutants-") as folder:
        examination = Examination(Path(folder), arguments.jobs)
        called: dict[str, list[str]] = {}
        if not arguments.tests:
            if arguments.map and arguments.map.exists():
                called = json.loads(arguments.map.read_text("utf-8"))
            else:
                called = tests_of_functions(examination)
            if arguments.map:
                arguments.map.write_text(json.dumps(called), encoding="utf-8")

        def judged(tree: Tree, change: dict[str, Any]) -> dict[str, Any]:
            source = (ROOT / change["path"]).read_text("utf-8")
            _, change["line"] = placed(change, source)
            function = f"{change['path']}:{function_at(source, change['line'])}"
            room = change["path"].split("/")[1].removesuffix(".py")
            tests = arguments.tests or sorted(
                called.get(function, []),
                key=lambda test: not re.match(rf"tests/(test_)?{room}\b", test),
            )
            if tests:
                tree.judge(change, tests, arguments.seconds, bool(arguments.tests))
            else:
                change.update(outcome="survived", tests=0)
            return change

        for place, change in enumerate(examination.each(judged, todo), 1):
            where = f"{change['path']}:{change['line']}"
            print(f"[{place}/{len(todo)}] {where} {change['outcome']} {change.get('by', '')}")
            if change["outcome"] == "survived":
                print(*(f"- {line}" for line in change["before"]), sep="\n")
                print(*(f"+ {line}" for line in change["after"]), sep="\n", flush=True)
            document["score"] = score(document["mutants"])
            text = json.dumps(document, indent=1) + "\n"
            arguments.result.write_text(text, encoding="utf-8")
    print(document["score"])


def score(mutants: list[dict[str, Any]]) -> dict[str, int]:
    """Mutants by outcome; those that alter nothing are a class of their own."""
    return dict(
        Counter(
            "equivalent" if each.get("reason", "").startswith("equivalent") else each["outcome"]
            for each in mutants
        )
    )


if __name__ == "__main__":
    main()
