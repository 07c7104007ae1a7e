# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: each notebook is executed while the site is built, and its page shows what came
out. Notebooks are kept without outputs, so they cannot show what no longer happens."""

from __future__ import annotations

import base64
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
        pictures: dict[str, bytes] = {}
        page = shown(executed(path), path.stem, pictures)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in an empty folder by the Python that builds the site."""
    notebook = nbformat.read(path, as_version=4)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PATH"] = programs  # "!python" is this one
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return notebook


def shown(notebook: nbformat.NotebookNode, stem: str, pictures: dict[str, bytes]) -> str:
    """The notebook as Markdown; its pictures are collected."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(each, f"{stem}-{len(pictures)}.png", pictures) for each in cell.outputs]
    source = f"[the notebook](../../docs/notebooks/{stem}.ipynb)"
    parts.append(f"*This page is {source}, executed when the site was built.*")
    return "\n\n".join(filter(None, parts)) + "\n"


def _output(output: Any, name: str, pictures: dict[str, bytes]) -> str:
    if output.output_type == "stream":
        return _plain(output.text)
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<figure class="drawing">{data["image/svg+xml"]}</figure>'
    if "image/png" in data:
        pictures[name] = base64.b64decode(data["image/png"])
        return f"![What the cell drew]({name})"
    return _plain(data.get("text/plain", ""))


def _plain(text: str) -> str:
    text = _COLOURS.sub("", text).strip("\n")
    return f"```text\n{text}\n```" if text else ""
