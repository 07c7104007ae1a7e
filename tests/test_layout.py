# SPDX-License-Identifier: Apache-2.0
"""The house rules: direction of imports, budgets, names, docstrings, linter, types."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from veldt.architectures import ARCHITECTURES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "veldt"
FILES = sorted(PACKAGE.rglob("*.py"))
ARCHITECTURE_FILES = sorted(
    set((PACKAGE / "architectures").glob("*.py")) - {PACKAGE / "architectures/__init__.py"}
)

# A unit may import units of lower layers, and of its own layer where that makes no cycle.
LAYERS = (
    {"errors", "types", "resources", "files", "callbacks", "client"},
    {"role"},
    {"ports"},
    {"algorithms", "networks", "environments", "games", "telemetry", "replay", "optimizers",
     "topology", "diagram", "checkpoints", "context", "options", "devices", "families"},
    {"objectives", "problem", "policy"},
    {"roles", "backends", "wire", "population", "league", "remote"},
    {"architectures", "extend"},
    {"run", "api", "dashboard", "sweeps", "trackers"},
    {"reports", "planner"},
    {"cli", "__main__", "__init__"},
)  # fmt: skip
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
STRANGERS = {"roles": {"backends"}, "backends": {"roles"}, "architectures": {"backends"}}
ONLY_IN = {
    "threading": {"backends", "devices.py", "reports/claims/runner.py"},  # a lock; a lifeline
    "multiprocessing": {"backends", "environments/processes.py", "reports/claims/runner.py"},
    "ray": {"backends"},
    "grpc": {"wire", "client"},
    "google": {"wire", "client"},
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "parts"}
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "joblib", "shelve"}


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path, when_loaded: bool = False) -> Iterator[str]:
    """Full names of the modules a file imports: anywhere in it, or only when it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in tree.body if when_loaded else ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def units_imported(path: Path, when_loaded: bool = False) -> set[str]:
    names = (name.split(".") for name in imports_of(path, when_loaded))
    return {parts[1] for parts in names if parts[0] == "veldt" and len(parts) > 1} & set(LEVEL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_unit_has_a_layer():
    assert {unit_of(path) for path in FILES} - set(LEVEL) == set()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path):
    unit = unit_of(path)
    for imported in units_imported(path) - {unit}:
        assert LEVEL[imported] <= LEVEL[unit], f"{unit} imports {imported}, which is above it"
        assert imported not in STRANGERS.get(unit, ()), f"{unit} must not know {imported}"


def test_units_of_one_layer_do_not_import_each_other_in_a_circle():
    edges: dict[str, set[str]] = {}
    for path in FILES:
        unit = unit_of(path)
        edges.setdefault(unit, set()).update(units_imported(path, when_loaded=True) - {unit})
    while leaves := [unit for unit, needs in edges.items() if not needs & set(edges)]:
        for unit in leaves:
            del edges[unit]
    assert set(edges) == set()


@pytest.mark.parametrize("path", ARCHITECTURE_FILES, ids=name_of)
def test_architectures_do_not_import_each_other(path):
    siblings = {f"veldt.architectures.{name}" for name in ARCHITECTURES}
    assert not siblings & set(imports_of(path))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_are_where_they_belong(path):
    for name in imports_of(path):
        top = name.split(".")[0]
        assert top not in FORBIDDEN_IMPORTS
        homes = ONLY_IN.get(top, {unit_of(path)})
        here = {unit_of(path), path.relative_to(PACKAGE).as_posix()}
        assert here & homes, f"{top} outside {', '.join(sorted(homes))}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_names_say_what_is_inside(path):
    assert (
        not {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts} & FORBIDDEN_NAMES
    )
    assert len(path.relative_to(PACKAGE).parts) <= 3


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    most_lines = 200 if unit_of(path) == "architectures" else 360
    assert len(text.splitlines()) <= most_lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # An architecture's build is a plain list of its nodes; splitting it would hide them.
            most = 80 if node.name == "build" else 60
            assert node.end_lineno - node.lineno < most, node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_first_line_is_the_licence(path):
    text = path.read_text(encoding="utf-8")
    assert not text or text.startswith("# SPDX-License-Identifier: Apache-2.0\n")


@pytest.mark.parametrize("path", ARCHITECTURE_FILES, ids=name_of)
def test_an_architecture_explains_itself(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert re.search(r"\b(19|20)\d\d\b", docstring.splitlines()[0]), "first line: paper and year"
    assert "-->" in docstring or "->" in docstring.split("New since")[0], "a diagram"
    assert re.search(r"^New( since|:)", docstring, re.M)
    assert re.search(r"^Lag:", docstring, re.M)


def test_the_table_of_architectures_is_the_folder():
    assert {path.stem for path in ARCHITECTURE_FILES} == set(ARCHITECTURES)


def test_the_readme_has_the_table():
    written = re.findall(r"^\| \[`(\w+)`\].*$", (ROOT / "README.md").read_text("utf-8"), re.M)
    rows = [
        f"| [`{row.name}`]({row.file}) | {row.year} | {row.paper} | {row.new} |"
        for row in ARCHITECTURES.values()
    ]
    assert written == list(ARCHITECTURES)
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    missing = [row for row in rows if row not in lines]
    assert not missing, "put these rows into README.md:\n" + "\n".join(missing)


# What others build on, and the architectures; `make lint` checks the same files.
PUBLIC_FACE = (
    "extend.py", "architectures", "ports.py", "topology.py", "types.py", "role.py", "problem.py",
    "api.py", "options", "errors.py", "context.py",
)  # fmt: skip
STRICT = ("mypy", "--strict", "--follow-imports=silent", "--cache-dir=.mypy_cache/strict",
          *(f"veldt/{name}" for name in PUBLIC_FACE))  # fmt: skip
"""With a cache of its own: other flags make a cache void."""


def test_make_lint_is_as_strict():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    [named] = re.findall(r"^PUBLIC_FACE := \$\(addprefix veldt/,(.*)\)$", makefile, re.M)
    assert tuple(named.split()) == PUBLIC_FACE


@pytest.mark.timeout(600)  # types are checked from nothing where there is no cache
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "."), id="ruff check"),
        pytest.param(("ruff", "format", "--check", "."), id="ruff format"),
        pytest.param(("mypy", "-p", "veldt"), id="mypy"),
        pytest.param(STRICT, id="mypy strict"),
    ],
)
def test_linter_and_types(command):
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent)) or shutil.which(
        command[0]
    )
    if tool is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        [tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
