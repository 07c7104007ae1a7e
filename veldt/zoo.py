# SPDX-License-Identifier: Apache-2.0
"""Trained policies that are shipped: small run directories, which `zoo:NAME` stands for.

benchmarks/zoo.py makes them: weights without optimizer, the curve, and a card with the command, the
commit and the score of fresh episodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from veldt.errors import ConfigurationError

PREFIX, CARD = "zoo:", "card.json"
ZOO = Path(__file__).parents[1] / "veldt_zoo"  # beside the package, in a checkout and installed


def cards() -> dict[str, dict[str, Any]]:
    """The card of each policy by its name."""
    files = sorted(ZOO.glob(f"*/{CARD}"))
    return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def zoo_run(run: str) -> Path:
    """The directory that zoo:NAME stands for."""
    name, known = run.removeprefix(PREFIX), cards()
    if name not in known:
        raise ConfigurationError(f"there is no {run}; the zoo has {', '.join(known)}")
    return ZOO / name


def listed() -> str:
    """Name, system, task and score of each policy."""
    known = cards()
    width = max(map(len, known))
    return "\n".join(
        f"{PREFIX}{name:<{width}}  {card['architecture']} on {card['env']},"
        f" {card['env_steps']:,} env steps: {card['score']['text']}"
        for name, card in known.items()
    )
