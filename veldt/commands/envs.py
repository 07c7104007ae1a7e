# SPDX-License-Identifier: Apache-2.0
"""`veldt envs`: ids of environments that are installed here."""

from __future__ import annotations

import gymnasium

import veldt.environments.small_tasks  # noqa: F401 - registers them
from veldt.environments.lookup import PETTINGZOO_GAMES, register_extras
from veldt.games import GAMES
from veldt.games.pettingzoo_games import known_modules

_FUNCTIONAL = ("phys2d/", "tabular/", "GymV")  # Gymnasium's other forms of what it has as well
OTHERS = "also pettingzoo:MODULE of your own, envpool:TASK, external:HOST:PORT, and module:function"


def env_ids(text: str = "") -> list[str]:
    """Ids that contain `text`, of Gymnasium, Atari, MinAtar and PettingZoo, and of Veldt."""
    register_extras()
    names = [*GAMES, *map(PETTINGZOO_GAMES.__add__, known_modules())]
    for name, spec in gymnasium.registry.items():
        is_raw_atari = "ale_py" in str(spec.entry_point) and not name.startswith("ALE/")
        if not (is_raw_atari or name.startswith(_FUNCTIONAL)):
            names.append(name)
    return sorted(name for name in names if text.lower() in name.lower())
