# SPDX-License-Identifier: Apache-2.0
"""Named parts of a reward, for policies that weigh them on their own.

An environment gives them with every step as info["reward_components"] = {"name": number, ...}. The
reward itself stays what it is: the task's true objective, by which policies are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from veldt.environments.vector import Step
from veldt.types import REWARD_COMPONENTS


def read_components(
    info: Mapping[str, Any], names: tuple[str, ...], step: Step, into: np.ndarray
) -> None:
    """Write the parts into [E, C], zeros for reset rows. Where an environment resets within the
    step, those of its last one are in the info that Gymnasium keeps of it."""
    given = info.get(REWARD_COMPONENTS, {})
    final = info.get("final_info", {})
    final = final.get(REWARD_COMPONENTS, {}) if isinstance(final, Mapping) else {}
    ended = step.terminated | step.truncated
    for place, name in enumerate(names):
        missing = name not in given and name not in final
        if missing and not step.ignored.all() and not step.aborted_episodes:
            raise ValueError(
                f"the environment's info has no '{REWARD_COMPONENTS}' named '{name}' (it has"
                f" {', '.join(key for key in given if not key.startswith('_')) or 'none'})"
            )
        column = into[:, place]
        column[:] = given.get(name, 0.0)
        if name in final:
            column[ended] = np.asarray(final[name])[ended]
        column[step.ignored] = 0.0
