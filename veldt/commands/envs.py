# SPDX-License-Identifier: Apache-2.0
"""`veldt envs`: ids of environments that are installed here."""

from __future__ import annotations

import gymnasium

import veldt.environments.small_tasks  # noqa: F401 - registers them
from veldt.environments.lookup import PETTINGZOO_GAMES, register_extras
from veldt.games import GAMES
from veldt.games.pettingzoo_games import known_modules

OTHERS = "also pettingzoo:MODULE of your own, envpool:TASK, external:HOST:PORT, and module:function"


def env_ids(text: str = "") -> list[str]:
    """Ids that contain `text`, of Gymnasium, Atari, MinAtar and PettingZoo, and of Veldt."""
    register_extras()
    names = [*gymnasium.registry, *GAMES, *map(PETTINGZOO_GAMES.__add__, known_modules())]
    newest = (name for name in names if not _is_other_form(name))
    return sorted(name for name in newest if text.lower() in name.lower())


def _is_other_form(name: str) -> bool:
    """Whether Veldt has a better id for it: raw frames, or Gymnasium's functional classes."""
    spec = gymnasium.registry.get(name)
    is_raw = spec is not None and "ale_py" in str(spec.entry_point) and not name.startswith("ALE/")
    return is_raw or name.startswith(("phys2d/", "tabular/", "GymV"))
