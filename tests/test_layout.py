# SPDX-License-Identifier: Apache-2.0
"""House rules: direction of imports, borders to other libraries, docstrings, linter, types."""

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
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
ARCHITECTURE_FILES = {
    path.stem: path
    for path in (PACKAGE / "architectures").glob("*.py")
    if path.stem in ARCHITECTURES
}
ONLY_IN = {
    "threading": ("backends", "devices.py"),
    "multiprocessing": ("process_groups.py", "backends"),
    "ray": ("backends",),
    "grpc": ("wire",),
    "google": ("wire",),
}
NEVER = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "llvmlite"}
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "parts"}
FOREIGN_MEMORY = {"from_address", "memmove", "memset"}
OWN_PRIVATE = ("torch._foreach",)  # the documented way to step many tensors in one call


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_imports_go_one_way():
    """The layers, and who may import leaves: [tool.importlinter] in pyproject.toml."""
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_libraries_are_imported_where_they_belong():
    wrong = []
    for path, tree in TREES.items():
        for name in imports_of(tree):
            top, rooms = name.split(".")[0], ONLY_IN.get(name.split(".")[0])
            if top in NEVER or (rooms and not name_of(path).startswith(rooms)):
                wrong.append(f"{name_of(path)}: {name}")
    assert not wrong


def test_no_private_part_or_memory_of_another_library_is_used():
    wrong = []
    for path, tree in TREES.items():
        for name in imports_of(tree):
            parts = name.split(".")
            is_private = any(p.startswith("_") and not p.startswith("__") for p in parts[1:])
            if is_private and parts[0] != "veldt":
                wrong.append(f"{name_of(path)}: {name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FOREIGN_MEMORY:
                wrong.append(f"{name_of(path)}: {node.attr}")
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                is_private = re.fullmatch(r"(ray|torch|gymnasium|ale_py|grpc)\._(?!_)\w+", name)
                if is_private and not name.startswith(OWN_PRIVATE):
                    wrong.append(f"{name_of(path)}: {name}")
    assert not wrong


def test_capabilities_are_typed():
    """Roles and architectures are asked through fields and methods, not by name."""
    rooms = ("architectures", "roles", "backends", "run", "population", "league", "cli", "planner")
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path, tree in TREES.items()
        if name_of(path).startswith(rooms)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "getattr" and isinstance(node.args[0], ast.Name | ast.Attribute)
        and isinstance(node.args[1], ast.Constant)
        and re.search(r"role|module|architecture", ast.unparse(node.args[0]))
    ]  # fmt: skip
    assert not wrong


def test_only_backends_ask_which_backend_it_is():
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path, tree in TREES.items()
        if not name_of(path).startswith("backends")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left).split(".")[-1] == "backend"
        if isinstance(node.ops[0], ast.Eq | ast.NotEq)
    ]
    assert not wrong


def test_names_say_what_is_inside():
    for path in TREES:
        assert not {part.removesuffix(".py") for part in path.parts} & EMPTY_NAMES, path
        assert len(path.relative_to(PACKAGE).parts) <= 3, path


def test_first_line_is_the_licence():
    for path in TREES:
        text = path.read_text("utf-8")
        assert not text or text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), path


def test_an_architecture_explains_itself():
    for path in ARCHITECTURE_FILES.values():
        docstring = ast.get_docstring(TREES[path]) or ""
        assert re.search(r"\b(19|20)\d\d\b", docstring.splitlines()[0]), f"{path}: paper and year"
        assert "-->" in docstring or "->" in docstring.split("New since")[0], f"{path}: a diagram"
        assert re.search(r"^New( since|:)", docstring, re.M), path
        assert re.search(r"^Lag:", docstring, re.M), path


def test_the_table_of_architectures_is_the_folder():
    assert set(ARCHITECTURE_FILES) == set(ARCHITECTURES)
    siblings = {f"veldt.architectures.{name}" for name in ARCHITECTURES}
    for path in ARCHITECTURE_FILES.values():
        found = {name.rpartition(".")[0] for name in imports_of(TREES[path])}
        assert not siblings & found, f"{path}: architectures do not import each other"


def test_the_readme_lists_every_architecture():
    written = re.findall(r"^\| \[`(\w+)`\]", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert written == list(ARCHITECTURES)


LINT = re.findall(r"^\t\$\(BIN\)/(.+)$", (ROOT / "Makefile").read_text("utf-8").split("\nlint:")[1]
                  .split("\n\n")[0].replace("\\\n", ""), re.M)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)  # types are checked from nothing where there is no cache
@pytest.mark.parametrize("command", LINT)
def test_linter_and_types(command):
    """What `make lint` runs."""
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", "")
    [face] = re.findall(r"^PUBLIC_FACE := \$\(addprefix veldt/,(.*)\)$", makefile, re.M)
    face = " ".join(f"veldt/{name}" for name in face.split())
    program, *words = command.replace("$(PUBLIC_FACE)", face).split()
    tool = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if tool is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([tool, *words], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
