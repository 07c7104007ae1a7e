# SPDX-License-Identifier: Apache-2.0
"""`veldt export`: the policy of a run in a file of its own."""

from __future__ import annotations

from pathlib import Path

from veldt.environments.copies import EnvironmentFailure
from veldt.errors import ConfigurationError
from veldt.policy.export import Exported, drawn, export, recorded
from veldt.run.best import BEST
from veldt.run.loading import loaded, restored

_OBSERVATIONS = 1_000


def export_run(
    run_dir: Path,
    format: str,
    out: Path,
    version: str,
    checkpoint: str | int = BEST,
    policy: int | None = None,
    trust_code: bool = False,
) -> Exported:
    """Write the policy of a checkpoint to `out` and check that it acts alike."""
    found = loaded(run_dir, checkpoint, policy, 0, trust_code)
    try:
        environment = restored(run_dir, checkpoint, trust_code=trust_code).plan.problem.environment
        observations = recorded(found, environment, _OBSERVATIONS)
    except (ConfigurationError, EnvironmentFailure, ValueError):  # it cannot be used here
        observations = drawn(found, _OBSERVATIONS)
    return export(found, format, out, observations, version)
