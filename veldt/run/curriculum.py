# SPDX-License-Identifier: Apache-2.0
"""Environment parameters that callbacks set, and the board that carries them to all actors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from veldt.backends.base import Backend
from veldt.environments import EnvironmentFactory
from veldt.environments.parameters import ENVIRONMENT, from_vector, to_vector
from veldt.errors import ConfigurationError
from veldt.types import Parameters


class Curriculum:
    """Writes the board of environment parameters, which is part of every checkpoint."""

    def __init__(
        self, environment: EnvironmentFactory, backend: Backend, note: Callable[[str], None]
    ) -> None:
        self._environment, self._backend, self._note = environment, backend, note
        self._version = 0
        self.values: dict[str, Any] = {}

    def load(self) -> None:
        """Continue with the values of the checkpoint that the run has begun from."""
        if self._environment.parameters is not None:
            found = self._backend.parameters(ENVIRONMENT)
            self._version, self.values = found.version, from_vector(found.vector)

    def set(self, values: Mapping[str, object]) -> None:
        """Send values to all environments; refuses what they do not accept."""
        name, accepted = self._environment.name, self._environment.parameters
        if accepted is None:
            raise ConfigurationError(
                f"the environment '{name}' takes no parameters; give it a method"
                " set_parameters(**values), which is called before an episode begins"
            )
        merged = {**self.values, **values}
        accepted.check(merged, name)
        vector = to_vector(merged)
        merged = from_vector(vector)
        if merged == self.values:
            return
        self._version, self.values = self._version + 1, merged
        self._backend.publish(ENVIRONMENT, Parameters(vector, self._version))
        shown = ", ".join(f"{key}={value}" for key, value in merged.items())
        self._note(f"version {self._version}: {shown}")

    def metrics(self) -> dict[str, float]:
        """The numbers among the values, by name."""
        return {
            f"{ENVIRONMENT}/{name}": float(value)
            for name, value in self.values.items()
            if isinstance(value, bool | int | float) and math.isfinite(value)
        }
