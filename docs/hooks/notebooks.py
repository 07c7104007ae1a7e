# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: pages of notebooks. Those of docs/notebooks are executed while the site is
built; those of docs/course are shown with their stored outputs."""

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

DOCS = Path(__file__).parent.parent
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, *, config: Any) -> Files:
    pages = [(path, executed(path)) for path in sorted((DOCS / "notebooks").glob("*.ipynb"))]
    course = sorted((DOCS / "course").glob("*.ipynb"))
    pages += [(path, nbformat.read(path, as_version=4)) for path in course]
    for path, notebook in pages:
        images: dict[str, bytes] = {}
        page = {f"{path.stem}.md": shown(notebook, path, images)}
        for name, content in {**page, **images}.items():
            uri = f"{path.parent.name}/{name}"
            files.append(File.generated(config, uri, content=content))
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


def shown(notebook: nbformat.NotebookNode, path: Path, images: dict[str, bytes]) -> str:
    """The notebook as Markdown with its outputs; plots are added to `images`, by file name."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(each, path, images) for each in cell.outputs]
    source = f"[the notebook](../../docs/{path.parent.name}/{path.name})"
    parts.append(f"*This page is {source} (`docs/{path.parent.name}/{path.name}`).*")
    return "\n\n".join(filter(None, parts)) + "\n"


def _output(output: Any, path: Path, images: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{path.stem}_{len(images) + 1}.png"
        images[name] = base64.b64decode(data["image/png"])
        return f"![What the cell above draws]({name})"
    text = output.text if output.output_type == "stream" else data.get("text/plain", "")
    text = _COLOURS.sub("", text).strip("\n")
    return f"```text\n{text}\n```" if text else ""
