# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: links from a page into the source tree lead nowhere on the site, which has only
docs/. There they become plain text; in the repository they stay links."""

from __future__ import annotations

import re
from typing import Any

_OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./[^)\s]+\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page; those in folders may mean other pages by "../"."""
    return markdown if "/" in page.file.src_uri else _OUT_OF_DOCS.sub(r"\1", markdown)
