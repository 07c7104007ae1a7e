# SPDX-License-Identifier: Apache-2.0
"""How many small changes of the core the quick tests notice.

    make mutants                                  # 200 mutants, about 40 minutes on 2 cores
    python benchmarks/mutants.py --count 20 --seed 3 --only losses replay

Each mutant changes one operator, number, condition or statement of one module, drawn by --seed. The
quick tests of the folders that should know the module run on it in a copy of the tree; a failure or
a timeout kills it. With --deep, survivors also face every other quick test. Survivors are printed
as diffs: each is a missing test, or a change that alters nothing (say which in the notes).
Writes benchmarks/results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import measuring

TESTS = {
    "losses": ("losses", "learning", "architectures"),
    "roles": ("roles", "architectures", "population", "backends"),
    "replay": ("replay", "roles", "losses"),
    "backends": ("backends", "architectures", "run"),
    "checkpoints": ("checkpoints", "run"),
    "run": ("run", "checkpoints", "cli", "faults", "test_api.py"),
    "league": ("league", "games"),
    "environments": ("environments", "roles", "games"),
    "optimizers.py": ("test_optimizers.py", "roles"),
}
_LEFT_OUT = ("backends/ray",)  # its tests are all slow
_SECONDS = 300
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


def mutated(source: str, node: Any) -> str:
    """The source with `node` changed in place; all other lines stay as they are."""
    if isinstance(node, ast.If):
        node, text = node.test, "True"
    else:
        new = changed(node)
        assert new is not None
        text = ast.unparse(ast.fix_missing_locations(new))
        text = text if isinstance(new, ast.stmt) else f"({text})"
    lines = source.encode().split(b"\n")
    before = b"\n".join([*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]])
    after = b"\n".join(
        [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    )
    return (before + text.encode() + after).decode()


def drawn(count: int, seed: int, only: list[str]) -> list[tuple[Path, str]]:
    """Modules and their mutated sources, every site of the core equally likely."""
    places = []
    for folder in only:
        base = measuring.ROOT / "veldt" / folder
        for path in [base] if base.suffix else sorted(base.rglob("*.py")):
            name = path.relative_to(measuring.ROOT / "veldt").as_posix()
            if not name.startswith(_LEFT_OUT):
                places += [(path, node) for node in sites(ast.parse(path.read_text("utf-8")))]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    return [(path, mutated(path.read_text("utf-8"), node)) for path, node in chosen]


def is_killed(tree: Path, path: Path, source: str, tests: list[str]) -> bool:
    target = tree / path.relative_to(measuring.ROOT)
    original = target.read_bytes()
    target.write_text(source, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'client'}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *(f"tests/{each}" for each in tests)], cwd=tree, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(_SECONDS) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        target.write_bytes(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(TESTS), choices=TESTS, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--deep", action="store_true", help="survivors face all quick tests")
    arguments = parser.parse_args()
    mutants = drawn(arguments.count, arguments.seed, arguments.only)
    machine, survivors = measuring.machine(), []
    with tempfile.TemporaryDirectory(prefix="veldt-mutants-") as folder:
        trees: Queue[Path] = Queue()
        for job in range(arguments.jobs):
            ignored = shutil.ignore_patterns(
                ".git", ".venv", ".peers", "__pycache__", "runs", "build"
            )
            trees.put(shutil.copytree(measuring.ROOT, Path(folder) / str(job), ignore=ignored))

        def examined(place: int) -> bool:
            path, source = mutants[place]
            package = path.relative_to(measuring.ROOT / "veldt").parts[0]
            tree = trees.get()
            try:
                killed = is_killed(tree, path, source, list(TESTS[package]))
                if not killed and arguments.deep:
                    killed = is_killed(tree, path, source, [""])
            finally:
                trees.put(tree)
            print(
                f"[{place + 1}/{len(mutants)}] {'killed' if killed else 'SURVIVED'} {path.name}",
                flush=True,
            )
            return killed

        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(examined, range(len(mutants))))
    for (path, source), killed in zip(mutants, outcomes, strict=True):
        if not killed:
            name = path.relative_to(measuring.ROOT).as_posix()
            old, new = path.read_text("utf-8").splitlines(), source.splitlines()
            change = "\n".join(difflib.unified_diff(old, new, name, name, lineterm="", n=1))
            print(change)
            survivors.append(change)
    share = sum(outcomes) / len(outcomes)
    print(f"{sum(outcomes)} of {len(outcomes)} mutants killed: {share:.0%}")
    document = {"machine": machine, "seed": arguments.seed, "mutants": len(outcomes),
                "killed": sum(outcomes), "survivors": survivors}  # fmt: skip
    path = measuring.RESULTS / "mutants.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
