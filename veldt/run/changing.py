# SPDX-License-Identifier: Apache-2.0
"""Which options a run may be resumed with other values of."""

from __future__ import annotations

ENDS = ("total_env_steps", "max_seconds", "target_return")
MAY_CHANGE = {
    *ENDS,
    "checkpoint_options",
    "dashboard",
    "device",
    "evaluation_episodes",
    "json",
    "num_actors",
    "quiet",
    "trackers",
}
