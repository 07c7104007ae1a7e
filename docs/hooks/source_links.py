# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: links into the source tree become text, because the site has only docs/; links
to notebooks lead to their pages."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page; those in folders mean other pages by "../"."""
    up = r"\.\./" * (page.file.src_uri.count("/") + 1)
    markdown = re.sub(rf"\[([^\]]+)\]\({up}[^)\s]+\)", r"\1", markdown)
    return markdown.replace(".ipynb)", ".md)")  # its page is made when the site is built
