# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: executes each notebook while the site is built and shows its outputs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, *, config: Any) -> Files:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page = shown(executed(path), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in an empty folder by the Python that builds the site."""
    notebook = nbformat.read(path, as_version=4)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PATH"] = programs  # so that "!python" is this Python
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return notebook


def shown(notebook: nbformat.NotebookNode, stem: str) -> str:
    """The notebook as Markdown, with printed outputs."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(each) for each in cell.outputs]
    source = f"[the notebook](../../docs/notebooks/{stem}.ipynb)"
    parts.append(f"*This page is {source}, executed when the site was built.*")
    return "\n\n".join(filter(None, parts)) + "\n"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        text = output.text
    else:
        text = output.get("data", {}).get("text/plain", "")
    text = _COLOURS.sub("", text).strip("\n")
    return f"```text\n{text}\n```" if text else ""
