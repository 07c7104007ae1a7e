# SPDX-License-Identifier: Apache-2.0
"""Executes notebooks of the course and stores their outputs.

python docs/course/execute.py [NAME ...]    all of them without a name; a minute or less each
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

COURSE = Path(__file__).resolve().parent


def execute(notebook: nbformat.NotebookNode, folder: str | Path) -> None:
    """Run all cells by this Python, with runs in `folder`; keep what they print and draw."""
    paths = [str(COURSE), str(COURSE.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [kept for each in cell.outputs if (kept := _kept(each)) is not None]


def _kept(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The output without numbers that change at every execution, or None for warnings."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    data = output.get("data", {})
    kind = "image/png" if "image/png" in data else "text/plain"
    return nbformat.v4.new_output("display_data", {kind: data[kind]}) if kind in data else None


def main(names: list[str]) -> None:
    for name in names or sorted(path.stem for path in COURSE.glob("*.ipynb")):
        path, began = COURSE / f"{name}.ipynb", time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        nbformat.write(notebook, path)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
