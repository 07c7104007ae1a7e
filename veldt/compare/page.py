# SPDX-License-Identifier: Apache-2.0
"""One HTML file with everything in it: opens offline, links to nothing. Its text is in templates/;
needs the extra `plots`."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

from veldt.errors import ConfigurationError
from veldt.files import write_atomically

TEMPLATES = Path(__file__).with_name("templates")


def check_installed(command: str) -> None:
    for library in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(library) is None:
            raise ConfigurationError(
                f'{command} makes its report with {library}; run: pip install "veldt[plots]"'
            )


def write_page(path: Path, template: Path, **content: Any) -> None:
    """Fill a template, which may extend those of this package; the file is written at once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader([TEMPLATES, template.parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters["embedded"] = _embedded
    write_atomically(path, templates.get_template(template.name).render(**content))


def _embedded(png: Path) -> str:
    """The picture as an address that holds its data."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")
