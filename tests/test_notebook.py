# SPDX-License-Identifier: Apache-2.0
"""Notebooks of the documentation run from the first cell to the last. A class from a cell is
refused with the fix, before anything starts."""

import os
import sys
from pathlib import Path

import pytest

import veldt

pytestmark = pytest.mark.slow
nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")
from nbclient import NotebookClient  # noqa: E402

ROOT = Path(veldt.__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
OWN_CLASS = """
import gymnasium
import veldt

class Own(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

try:
    veldt.train("impala", env=Own, total_env_steps=200, run_dir="run")
except veldt.ConfigurationError as error:
    print(error)
"""


def executed(notebook, folder: Path, monkeypatch):
    """Run by a kernel of this Python, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", programs)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=100, kernel_name="python3", resources=resources).execute()
    return notebook


@pytest.mark.timeout(200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_kept_without_outputs(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    executed(notebook, tmp_path, monkeypatch)
    printed = "".join(each.get("text", "") for cell in cells for each in cell.outputs)
    assert "one episode:" in printed
    assert "stopped by callback" in printed


def test_a_class_from_a_cell_is_refused_with_the_fix(tmp_path, monkeypatch):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(OWN_CLASS)])
    executed(notebook, tmp_path, monkeypatch)
    printed = "".join(each.text for each in notebook.cells[0].outputs)
    assert "was defined at a prompt or in a notebook" in printed
    assert "top level of a module" in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()
