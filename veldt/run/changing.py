# SPDX-License-Identifier: Apache-2.0
"""Which options a run may be resumed with other values of."""

from __future__ import annotations

ENDS = ("total_env_steps", "max_seconds", "target_return")
MAY_CHANGE = {
    *ENDS,
    "checkpoint_env_steps",
    "checkpoint_seconds",
    "dashboard",
    "device",
    "evaluation_episodes",
    "inference_device",
    "json",
    "keep_checkpoints",
    "learner_devices",
    "learner_threads",
    "local_dir",
    "num_actors",
    "port",
    "quiet",
    "store_seconds",
    "trackers",
}
