# SPDX-License-Identifier: Apache-2.0
"""claims.html: every claim with its rule, what was measured, its verdict and its figure. Made from
claims.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veldt.compare.report import write_page

from .claim import CRITERION_COLUMNS, DOES_NOT_HOLD, HOLDS, criterion_cells, shown


def write_report(path: Path, document: dict[str, Any]) -> None:
    write_page(
        path,
        Path(__file__).parent / "templates/claims.html",
        title="The claims of the lineage, examined",
        colours={HOLDS: "#1a7f37", DOES_NOT_HOLD: "#b42318"},
        folder=path.parent,
        criterion_columns=CRITERION_COLUMNS,
        criterion_cells=criterion_cells,
        shown=shown,
        **document,
    )
