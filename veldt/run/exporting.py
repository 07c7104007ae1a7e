# SPDX-License-Identifier: Apache-2.0
"""`veldt export`: the policy of a run in a file of its own."""

from __future__ import annotations

from pathlib import Path

from veldt.environments import EnvironmentFactory
from veldt.environments.resilience import EnvironmentFailure
from veldt.errors import ConfigurationError
from veldt.policy import TrainedPolicy
from veldt.policy.export import Exported, drawn, export, recorded
from veldt.policy.trained import Observation
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
    """Write the policy of a checkpoint to `out`, and prove on observations of the run's environment
    that it acts alike; where there is none to be had, on draws from its space."""
    found = loaded(run_dir, checkpoint, policy, 0, trust_code)
    try:
        environment = restored(run_dir, checkpoint, trust_code=trust_code).plan.problem.environment
    except ConfigurationError:
        environment = None
    return export(found, format, out, _observations(found, environment), version)


def _observations(
    policy: TrainedPolicy, environment: EnvironmentFactory | None
) -> list[Observation]:
    if environment is not None:
        try:
            return recorded(policy, environment, _OBSERVATIONS)
        except (ConfigurationError, EnvironmentFailure, ValueError):
            pass  # an environment that only Veldt's own stepping understands
    return drawn(policy, _OBSERVATIONS)
