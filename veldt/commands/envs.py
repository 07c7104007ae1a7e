# SPDX-License-Identifier: Apache-2.0
"""`veldt envs`: ids of environments that are installed here."""

from __future__ import annotations

import gymnasium

import veldt.environments.small_tasks  # noqa: F401 - registers them
from veldt.environments.lookup import register_extras
from veldt.games import GAMES

OTHERS = (
    "also pettingzoo:MODULE (such as pettingzoo:classic.connect_four_v3), envpool:TASK,"
    " external:HOST:PORT, and module:function for your own"
)


def env_ids(text: str = "") -> list[str]:
    """Ids that contain `text`, of Gymnasium, Atari and MinAtar where installed, and Veldt."""
    register_extras()
    newest = (name for name in [*gymnasium.registry, *GAMES] if not _is_other_form(name))
    return sorted(name for name in newest if text.lower() in name.lower())


def _is_other_form(name: str) -> bool:
    """Whether Veldt has a better id for it: raw frames, or Gymnasium's functional classes."""
    spec = gymnasium.registry.get(name)
    is_raw = spec is not None and "ale_py" in str(spec.entry_point) and not name.startswith("ALE/")
    return is_raw or name.startswith(("phys2d/", "tabular/", "GymV"))
