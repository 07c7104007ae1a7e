# SPDX-License-Identifier: Apache-2.0
"""A budget of environment steps, and how often to look that it is not overdrawn."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.telemetry.aggregate import RunTelemetry

_LONGEST_SECONDS, _SHORTEST_SECONDS = 0.05, 0.001
_FAST_ENV_STEPS_PER_SECOND = 200_000  # what a run may reach before its rate is known


@dataclass(frozen=True)
class Budget:
    """So many steps of all actors; None: no end."""

    env_steps: int | None

    def is_spent(self, telemetry: RunTelemetry) -> bool:
        return self.env_steps is not None and telemetry.env_steps >= self.env_steps

    def tick_seconds(self, telemetry: RunTelemetry) -> float:
        """Until the next look: short enough near the end to notice it in time."""
        if self.env_steps is None:
            return _LONGEST_SECONDS
        rate = max(telemetry.rate("env_steps"), _FAST_ENV_STEPS_PER_SECOND)
        left = (self.env_steps - telemetry.env_steps) / rate
        return min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, left / 2))
