# SPDX-License-Identifier: Apache-2.0
"""Whether the program that starts a run can be imported again by the processes of its nodes.

They import its main module to find classes of the user's. One that starts a run while it is
imported would start another run in each of them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType

from veldt.errors import ConfigurationError


def check_main_is_guarded() -> None:
    """Refuse a script that starts the run outside of `if __name__ == "__main__":`."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    line = _line_of_main(sys._getframe(), vars(main))
    if file is None or line is None:
        return  # a prompt, a notebook, or a thread of its own
    if main.__spec__ is None and not Path(file).is_file():
        raise ConfigurationError(
            f"this program comes from {file}, where the processes of a run cannot import it; save"
            ' it as a file, or use backend="serial"'
        )
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # a console script in an archive, or no Python file at all
    if not any(_is_guard(node) and node.lineno <= line <= _end(node) for node in tree.body):
        raise ConfigurationError(
            f'{file}, line {line}, starts a run outside of if __name__ == "__main__": and would'
            " start it again in each of its processes; put that line under such an if, or use"
            ' backend="serial"'
        )


def _line_of_main(frame: FrameType | None, names: dict[str, object]) -> int | None:
    """The line of the main module's own code that is being executed."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is names:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guard(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If):
        return False
    text = ast.unparse(node.test)
    return "__name__" in text and "__main__" in text


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
